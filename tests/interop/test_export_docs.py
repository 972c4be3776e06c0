"""Every example of docs/export.md runs."""

import re
import shlex
from pathlib import Path

from flowtempo.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "export.md"


def test_examples(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(shell|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert {kind for kind, _ in blocks} == {"shell", "python"}
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), {})
            continue
        for line in text.strip().splitlines():
            program, *words = shlex.split(line)
            assert program == "flowtempo"
            assert main(words) == 0, capsys.readouterr().err
    for name in ("sigmas.csv", "sigmas.json", "density.csv"):
        assert (tmp_path / name).stat().st_size > 0
