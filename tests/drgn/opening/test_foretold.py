# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is foretold of a kernel by its types."""

import struct
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from btf_blobs import BtfBlob

from mmscope.drgn.opening import NoDebugInfoError, foretold
from mmscope.drgn.opening.btf import ENUM, FUNC, FUNC_PROTO, TYPEDEF
from mmscope.drgn.opening.foretold import Asked, Foretold, known, loaded, what_it_has
from mmscope.drgn.sections.registry import SECTIONS

HAS = {"+": True, "-": False, "?": None}
# Two kernels: a struct lost a member to another, and a section came with it.
SAID = """
kernels = ["old", "new"]
[answers]
"++" = "struct page: . flags; struct zone: name; constant: NR_FREE"
"+-" = "struct page: lru; struct zone: pageset; symbol: early"
"-+" = "struct page: list; struct zone: stats; struct tag: ."
"??" = "struct zram: .; symbol: swap_info"
[sections.pages]
statuses = [["old new", "ok", ""]]
asked.all = "struct page: . flags list; struct zone: name stats; constant: NR_FREE"
asked."old new" = "struct zram: .; symbol: swap_info"
asked.old = "struct page: lru; struct zone: pageset"
[sections.tags]
statuses = [["old", "absent", "not compiled in"], ["new", "ok", ""]]
asked.all = "struct tag: ."
[sections.owners]
statuses = [["old new", "absent", "not switched on"], ["new", "ok", ""]]
asked.all = "struct page: flags"
"""
NEW = {"struct page", "struct page.flags", "struct page.list", "struct zone.name"}
NEW |= {"struct zone.stats", "struct tag", "constant NR_FREE"}


def told(has: set[str], without: tuple[str, ...] = ()) -> dict[str, Foretold]:
    sections = asked().foretell(has.__contains__, without)
    return {section.section: section for section in sections}


def asked() -> Asked:
    return loaded(tomllib.loads(SAID))


def test_a_kernel_that_answers_as_a_known_one_is_read_as_that_was() -> None:
    pages, tags = (told(NEW)[name] for name in ("pages", "tags"))
    assert pages == Foretold("pages", "ok", ["new"], [])
    assert tags == Foretold("tags", "ok", ["new"], [])


def test_what_a_known_kernel_gave_as_the_reason_is_said() -> None:
    assert told(NEW - {"struct tag"})["tags"] == Foretold(
        "tags", "absent", ["old"], ["not compiled in"]
    )


def test_a_kernel_between_two_is_likely_to_be_read() -> None:
    between = NEW - {"struct page.list"} | {"struct page.lru"}
    assert told(between)["pages"] == Foretold("pages", "likely ok", ["old", "new"], [])


def test_what_no_kernel_answered_so_is_unknown_and_said() -> None:
    gone, neither = told(NEW - {"struct zone.name"}), told(NEW - {"struct page.list"})
    assert gone["pages"] == Foretold("pages", "unknown", [], ["has no struct zone.name"])
    assert gone["pages"].like == neither["pages"].like == []
    assert neither["pages"].why == ["has no struct page.list", "has no struct page.lru"]


def test_a_member_that_went_with_nothing_in_its_place_counts_by_itself() -> None:
    """In another release than the one that another member was replaced in."""
    both = loaded(
        tomllib.loads("""
kernels = ["old", "new"]
[answers]
"++" = "struct page: ."
"+-" = "struct page: lru share"
"-+" = "struct page: list"
[sections.pages]
statuses = [["old new", "ok", ""]]
asked.all = "struct page: . list share"
asked.old = "struct page: lru"
""")
    )
    for names, status in {
        ("lru", "share"): "ok",
        ("list",): "ok",
        ("lru",): "likely ok",
        ("list", "share"): "likely ok",
        ("share",): "unknown",
        (): "unknown",
    }.items():
        has = {"struct page", *(f"struct page.{name}" for name in names)}
        assert both.foretell(has.__contains__)[0].status == status, names


def test_what_a_constant_was_is_asked_for_by_itself() -> None:
    (why,) = told(NEW - {"constant NR_FREE"})["pages"].why
    assert why == "has no constant NR_FREE"


def test_what_types_cannot_tell_decides_nothing() -> None:
    """A module's types and variables are in no BTF of the kernel, whether it has them or not."""
    for more in ({"struct zram"}, {"symbol swap_info"}):
        assert told(NEW | more)["pages"].status == "ok"


def test_what_the_types_do_not_decide_stays_open() -> None:
    assert told(NEW)["owners"] == Foretold(
        "owners", "ok or absent", ["old", "new"], ["not switched on"]
    )


def test_a_kernel_can_be_foretold_as_if_it_had_not_been_read() -> None:
    assert told(NEW, ("new",))["pages"].status == "unknown"
    assert told(NEW, ("new", "old"))["pages"].why == ["no kernel was read"]


HEADER = """#ifndef __VMLINUX_H__
#define __VMLINUX_H__

enum {
	NR_FREE = 0,
	NR_MORE = 4294967295ULL,
};

enum zone_type {
	ZONE_DMA = 0,
};

typedef enum {
	GONE = 1,
} gone_t;

typedef unsigned int u32;

typedef struct {
	int counter;
} atomic_t;

typedef atomic_t counter_t;

typedef struct page page_t;

typedef void (*work_func_t)(struct page *);

struct page {
	long unsigned int flags;
	union {
		struct {
			struct page *lru;
			u32 order: 3;
		};
		struct {
			int (*call)(void *, int);
			struct page *rows[4][2];
		} inner;
		void (*table[3])(int);
	};
	atomic_t _refcount __attribute__((aligned(8)));
	u32: 32;
	u32 last;
};

extern int bpf_some(struct page *flags) __weak __ksym;
"""


def test_a_header_says_what_its_kernel_has(tmp_path: Path) -> None:
    file = tmp_path / "vmlinux.h"
    file.write_text(HEADER)
    has = what_it_has(file)
    page = (
        "flags",
        "lru",
        "order",
        "inner",
        "inner.call",
        "inner.rows",
        "table",
        "_refcount",
        "last",
    )
    there = [
        "struct page", *(f"struct page.{name}" for name in page), "u32", "atomic_t", "work_func_t",
        "atomic_t.counter", "gone_t", "enum zone_type", "constant NR_FREE", "constant NR_MORE",
        "counter_t.counter", "page_t.inner.call", "constant ZONE_DMA", "constant GONE",
    ]  # fmt: skip
    assert [ask for ask in there if not has(ask)] == []
    others = ["struct page.call", "struct page.u32", "struct page.int", "struct zone"]
    assert [ask for ask in [*others, "constant u32", "bpf_some", "u64"] if has(ask)] == []
    assert has("symbol bpf_some") is None


def blob() -> bytes:
    """BTF of ``struct page { u32 flags; struct { u32 lru; } inner; }``, and more."""
    of = BtfBlob()
    number = of.integer("u32", 4)
    inner = of.struct("", 4, {"lru": (number, 0)})
    page = of.struct("page", 8, {"flags": (number, 0), "inner": (inner, 4)})
    of.add(TYPEDEF, "page_t", size_or_type=page)
    of.add(ENUM, "", 1, 4, [of.name("NR_FREE"), 0])
    of.add(FUNC, "compact", size_or_type=of.add(FUNC_PROTO))
    return of.blob()


def elf(blob: bytes) -> bytes:
    """An ELF file with a section .BTF."""
    names = b"\0.BTF\0.names\0"
    header = struct.pack("<16s24xQ10xHHH", b"\x7fELF\x02\x01\x01", 64, 64, 3, 2)
    places = [(0, 0, 0), (1, 256, len(blob)), (6, 256 + len(blob), len(names))]
    sections = b"".join(struct.pack("<I20xQQ24x", *place) for place in places)
    return header + sections + blob + names


@pytest.mark.parametrize("made", [blob, lambda: elf(blob())])
def test_btf_says_what_its_kernel_has(tmp_path: Path, made: Callable[[], bytes]) -> None:
    file = tmp_path / "vmlinux"
    file.write_bytes(made())
    has = what_it_has(file)
    there = ["struct page", "struct page.inner.lru", "page_t.flags", "constant NR_FREE"]
    assert [ask for ask in [*there, "page_t", "symbol compact"] if not has(ask)] == []
    others = ["struct page.lru", "struct page.flags.lru", "struct zone", "page", "symbol NR_FREE"]
    assert [ask for ask in [*others, "union page", "constant compact"] if has(ask)] == []


@pytest.mark.parametrize("length", [63, 64, 100, 255, 300])
def test_an_elf_file_that_ends_early_is_refused(tmp_path: Path, length: int) -> None:
    file = tmp_path / "vmlinux"
    file.write_bytes(elf(blob())[:length])
    with pytest.raises(NoDebugInfoError, match=r"without a section \.BTF"):
        what_it_has(file)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "neither BTF, nor a vmlinux with it, nor a vmlinux.h"),
        (b"\x9f\xeb", "are no BTF"),
        (b"\x7fELF", "an ELF file without a section .BTF"),
        (b"__VMLINUX_H__\n" + b"struct {\n" * 70, "too deep"),
    ],
)
def test_another_file_is_refused_with_what_to_give(tmp_path: Path, data: bytes, why: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    with pytest.raises(NoDebugInfoError, match=why):
        what_it_has(file)


def test_what_the_package_knows_is_whole() -> None:
    has = known()
    assert set(has.asked) <= set(SECTIONS)
    assert len(has.asked) > 30
    assert {len(letters) for letters in has.answers.values()} == {len(has.kernels)}
    assert set("".join(has.answers.values())) == {foretold.YES, foretold.NO, foretold.UNKNOWN}
    for section, of in has.asked.items():
        assert of.keys() == has.statuses[section].keys() <= set(has.kernels)
        assert set().union(*of.values()) <= has.answers.keys()


def test_a_kernel_that_was_read_is_foretold_as_it_was() -> None:
    has = known()
    for at, kernel in enumerate(has.kernels):
        sections = has.foretell(lambda ask, at=at: HAS[has.answers[ask][at]])
        for section in sections:
            statuses = {status for status, _ in has.statuses[section.section].get(kernel, ())}
            assert statuses <= set(section.status.split(" or ")), (kernel, section)
            assert not statuses or kernel in section.like
