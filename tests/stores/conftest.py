"""Lets the tests of each store import the suite that all stores have to pass."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("conformance")
