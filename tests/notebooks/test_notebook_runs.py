# SPDX-License-Identifier: LGPL-2.1-or-later
"""``docs/notebook.ipynb`` as Jupyter runs it, over a made bundle."""

from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="nbclient is not installed: make test-notebook")

import nbformat
import report_bundle as made
from checkout import ROOT
from nbclient import NotebookClient

MINUTES = 5 * 60  # for a machine that is busy


def test_each_cell_shows_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.write_bundle(tmp_path / "case", made.tables())
    monkeypatch.setenv("CASE", str(tmp_path / "case"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Nothing of this user's Jupyter.
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(ROOT / "docs/notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    NotebookClient(notebook, timeout=MINUTES, kernel_name="python3").execute(cwd=str(tmp_path))
    shown = [
        output["data"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    why, findings, zones, pandas, polars, memory, flames = shown
    assert "<pre>" in why["text/html"] and why["text/plain"].startswith("read ")
    assert "<details open>" in findings["text/html"]
    assert "managed_pages" in zones["text/plain"]
    assert all("<table" in frame["text/html"] for frame in (pandas, polars))
    assert all("<iframe sandbox" in picture["text/html"] for picture in (memory, flames))
