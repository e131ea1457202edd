pytest_plugins = ["midstream.testing.pytest_plugin", "midstream.testing.races_plugin"]
