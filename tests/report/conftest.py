from __future__ import annotations

import pytest
from example_records import Example, build_example


@pytest.fixture(scope="session")
def example(tmp_path_factory) -> Example:
    return build_example(tmp_path_factory.mktemp("example"))
