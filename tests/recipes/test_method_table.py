"""docs/methods.md says what the code does."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_script_writes():
    spec = importlib.util.spec_from_file_location("method_table", ROOT / "scripts" / "method_table.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (ROOT / "docs" / "methods.md").read_text(encoding="utf-8") == script.page(), (
        "run python scripts/method_table.py"
    )
