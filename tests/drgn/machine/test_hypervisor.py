# SPDX-License-Identifier: LGPL-2.1-or-later
"""A guest is known by its modules, its log, and its firmware's DMI."""

from pathlib import Path

import pytest

from mmscope.drgn.machine.hypervisor import signs_of_dmi, signs_of_log, signs_of_modules
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.text.kernel_log import Log, LogRecord
from mmscope.reports.collect.run_section import run_section


def said(*lines: str) -> list[tuple[str, str]]:
    records = [LogRecord(None, None, None, None, None, None, line) for line in lines]
    return [(row.kind, row.name) for row in signs_of_log(Log(records))]


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        ("Hypervisor detected: KVM", ("hypervisor", "KVM")),
        ("Hypervisor detected: Microsoft Hyper-V", ("hypervisor", "Hyper-V")),
        ("Booting paravirtualized kernel on VMware hypervisor", ("hypervisor", "VMware")),
        ("hv_balloon: Max. dynamic memory size: 8192 MB", ("balloon", "hv_balloon")),
        ("virtio_balloon virtio3: Out of puffs! Can't get 1 pages", ("balloon", "virtio_balloon")),
        ("xen:balloon: Initialising balloon driver", ("balloon", "xen_balloon")),
    ],
)
def test_the_log_says_it(line: str, sign: tuple[str, str]) -> None:
    assert said("Linux version 6.1.0", line, line) == [sign]


@pytest.mark.parametrize(
    "line",
    ["Booting paravirtualized kernel on bare hardware", "x: Hypervisor detected: KVM", "kvm"],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert said(line) == []


def test_modules_that_are_balloons() -> None:
    names = ["ext4", "virtio-balloon", "hv_balloon", "my_balloon"]
    assert [row.name for row in signs_of_modules(names)] == ["hv_balloon", "virtio_balloon"]


@pytest.mark.parametrize(
    ("vendor", "product", "name"),
    [
        ("QEMU", "Standard PC", "KVM"), ("VMware, Inc.", "VMware7,1", "VMware"),
        ("Microsoft Corporation", "Virtual Machine", "Hyper-V"),
        ("Microsoft Corporation", "Surface Laptop", None),
        ("Google", "Google Compute Engine", "KVM"), ("Google", "Morphius", None),
        ("Dell Inc.", "PowerEdge R650", None), ("", "", None),
    ],
)  # fmt: skip
def test_the_firmware_says_it(vendor: str, product: str, name: str | None) -> None:
    assert [row.name for row in signs_of_dmi(vendor, product)] == ([name] if name else [])


def test_each_file_of_a_tree_says_what_it_has(tmp_path: Path) -> None:
    for path, text in {
        "proc/modules": "hv_balloon 36864 0 - Live 0x0000000000000000\next4 1 0 - Live 0x0\n",
        "dmesg": "[    0.000000] Hypervisor detected: Microsoft Hyper-V\n",
        "sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n",
        "sys/class/dmi/id/product_name": "Virtual Machine\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    section, found = run_section(SECTIONS["hypervisor"], Files(tmp_path))
    rows = [(row.name, row.seen_in) for row in found.by_name["hypervisor_signs"]]
    assert section.status == "ok"
    assert rows == [("hv_balloon", "modules"), ("Hyper-V", "log"), ("Hyper-V", "dmi")]


def test_a_blank_line_among_the_modules_is_none(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/modules").write_text("ext4 1 0 - Live 0x0\n \nhv_balloon 1 0 - Live 0x0\n")
    section, found = run_section(SECTIONS["hypervisor"], Files(tmp_path))
    assert section.status == "ok"
    assert [row.name for row in found.by_name["hypervisor_signs"]] == ["hv_balloon"]


def test_a_tree_without_any_of_them_is_absent(tmp_path: Path) -> None:
    section, _ = run_section(SECTIONS["hypervisor"], Files(tmp_path))
    assert section.status == "absent"
