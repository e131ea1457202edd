"""Path patterns follow Bun.Glob (spec/ttsr.md 1.4) and see a path in all its forms (3.4)."""

import hypothesis
import pytest
from hypothesis import strategies as st

from midstream.rules.globs import (
    BRACE_LIMIT,
    GlobError,
    candidate_paths,
    compile_glob,
)

TABLE = [
    ("*.ts", "a.ts", True),
    ("*.ts", ".ts", True),
    ("*.ts", ".hidden.ts", True),
    ("*.ts", "a/b.ts", False),
    ("*.TS", "a.ts", False),
    ("*.ts", "a.TS", False),
    ("*.ts", "a.tsx", False),
    ("*.ts", "a.ts\n", False),
    ("?.ts", "a.ts", True),
    ("?.ts", "ab.ts", False),
    ("?hidden", ".hidden", True),
    ("a?b", "a/b", False),
    ("?", "😀", True),
    ("**/*.ts", "a.ts", True),
    ("**/*.ts", "a/b/c.ts", True),
    ("**/*.ts", ".a/.b.ts", True),
    ("**", "a", True),
    ("**", "a/b", True),
    ("src/**", "src", False),
    ("src/**", "src/a", True),
    ("src/**", "src/a/b", True),
    ("src/**", "src/.a/.b", True),
    ("src/**", "lib/src/a", False),
    ("a/**/b", "a/b", True),
    ("a/**/b", "a/x/y/b", True),
    ("a/**/b", "a/../b", True),
    ("**/**/b", "b", True),
    ("a/**/**", "a", False),
    ("/**/b", "/b", True),
    ("a/**b", "a/xb", True),
    ("a/**b", "a/x/yb", False),
    ("a**b", "axb", True),
    ("a**b", "a/b", False),
    ("[ab].c", "a.c", True),
    ("[ab].c", "c.c", False),
    ("[a-c]x", "bx", True),
    ("[!ab]", "a", False),
    ("[!ab]", "c", True),
    ("[^ab]", "c", True),
    ("[^ab]", "b", False),
    ("[!ab]", "/", False),
    ("[[:alpha:]]", "q", False),
    ("*.{ts,tsx}", "a.ts", True),
    ("*.{ts,tsx}", "a.tsx", True),
    ("*.{ts,tsx}", "a.js", False),
    ("{a,b{c,d}}", "a", True),
    ("{a,b{c,d}}", "bd", True),
    ("{a,b{c,d}}", "b", False),
    ("{src,test}/**/*.{ts,tsx}", "test/a/b.tsx", True),
    ("{**/a,b}", "x/y/a", True),
    ("a{,b}", "a", True),
    ("a{,b}", "ab", True),
    ("{a}", "a", True),
    ("{1..3}", "2", False),
    ("{1..3}", "1..3", True),
    ("{a,b", "{a,b", True),
    ("a}b", "a}b", True),
    ("a\\{b,c}", "a{b,c}", True),
    ("[{]a,b}", "{a,b}", True),
    ("\\*", "*", True),
    ("\\*", "a", False),
    ("a|b", "a", False),
    ("a|b", "a|b", True),
    ("@(a|b)", "a", False),
    ("~/x", "~/x", True),
    ("", "", False),
    ("", "a", False),
    ("./src/*.ts", "src/a.ts", False),
    ("./src/*.ts", "./src/a.ts", True),
    ("/abs/**", "/abs/x/y", True),
    ("!*.ts", "a.ts", False),
    ("!*.ts", "a.js", True),
    ("!!*.ts", "a.ts", True),
    ("\\!a", "!a", True),
]


@pytest.mark.parametrize(("pattern", "path", "expected"), TABLE)
def test_a_pattern_matches_as_bun_glob_does(pattern: str, path: str, expected: bool):
    assert compile_glob(pattern).matches([path]) is expected


@pytest.mark.parametrize("raw", ["./src/main.ts", "src/main.ts", "/abs/src/main.ts"])
def test_a_pattern_without_slashes_matches_the_last_segment_of_any_form(raw: str):
    candidates = candidate_paths(raw, "/work")

    assert compile_glob("*.ts").matches(candidates)
    assert not compile_glob("*.TS").matches(candidates)


@pytest.mark.parametrize(
    ("raw", "forms"),
    [
        ("src/a.ts", ("src/a.ts", "/repo/src/a.ts", "a.ts")),
        ("./src/a.ts", ("./src/a.ts", "src/a.ts", "/repo/src/a.ts", "a.ts")),
        ("/repo/src/a.ts", ("/repo/src/a.ts", "src/a.ts", "a.ts")),
        ("/etc/passwd", ("/etc/passwd", "passwd")),
        ("../x/a.ts", ("../x/a.ts", "/x/a.ts", "a.ts")),
        ("src\\lib\\a.ts", ("src/lib/a.ts", "/repo/src/lib/a.ts", "a.ts")),
        ("C:\\x\\a.ts", ("C:/x/a.ts", "a.ts")),
        ("  a.ts ", ("a.ts", "/repo/a.ts")),
        ("src/../lib/a.ts", ("src/../lib/a.ts", "/repo/lib/a.ts", "lib/a.ts", "a.ts")),
        ("~/a.ts", ("~/a.ts", "/repo/~/a.ts", "a.ts")),
        ("", ()),
        ("   ", ()),
    ],
)
def test_a_path_is_tried_in_each_of_its_forms(raw: str, forms: tuple[str, ...]):
    assert candidate_paths(raw, "/repo") == forms


def test_a_neighbour_of_the_working_directory_is_not_inside_it():
    assert "x/a.ts" not in candidate_paths("/repo-old/x/a.ts", "/repo")


def test_a_path_below_the_root_directory_is_relative_to_it():
    assert "etc/hosts" in candidate_paths("/etc/hosts", "/")


def test_a_negated_pattern_excludes_a_file_in_every_form_of_its_path():
    candidates = candidate_paths("pkg/server_test.go", "/repo")

    assert not compile_glob("!*_test.go").matches(candidates)
    assert compile_glob("!*_test.go").matches(candidate_paths("pkg/server.go", "/repo"))


@pytest.mark.parametrize(
    "pattern",
    ["{a,b}" * 9, "{" * 11 + "}" * 11, "x" * 2000],
)
def test_a_pattern_that_would_be_expensive_is_refused(pattern: str):
    with pytest.raises(GlobError):
        compile_glob(pattern)


def test_the_largest_allowed_brace_expansion_works():
    assert BRACE_LIMIT == 2**8
    assert compile_glob("{a,b}" * 8).matches(["abababab"])


def test_a_long_path_is_matched_on_its_last_segments():
    path = "a/b/" * 2000 + "c/d.ts"

    assert compile_glob("**/c/*.ts").matches([path])
    assert not compile_glob("/".join(["**/a"] * 100) + "/x").matches([path])


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    pattern=st.text(alphabet="ab/.*?[]{},!\\-^", max_size=14),
    path=st.text(alphabet="ab/.{},*\\", max_size=10),
)
def test_any_pattern_compiles_and_answers(pattern: str, path: str):
    answer = compile_glob(pattern).matches([path])

    assert compile_glob("!" + pattern).matches([path]) is not answer


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(st.text(alphabet="abc/.", min_size=1, max_size=12))
def test_a_path_without_special_characters_matches_itself_only(path: str):
    assert compile_glob(path).matches([path])
    assert not compile_glob(path).matches([path + "x"])
