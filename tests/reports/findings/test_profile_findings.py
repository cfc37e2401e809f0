# SPDX-License-Identifier: LGPL-2.1-or-later
"""What profiles mean: each finding on a bundle where it holds, and on one where it does not."""

import dataclasses
import re
from pathlib import Path

import pytest
import report_bundle as made
from profile_cases import BESIDE_MEMORY, PROFILES, booted

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import open_database, views
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.description import SAME_BOOT_SECONDS
from mmscope.reports.findings.finding import Finding
from mmscope.reports.findings.findings import evaluate, named
from mmscope.reports.findings.query import query_of
from mmscope.reports.findings.question import HIDES, OURS, Question
from mmscope.reports.page.report import render

QUESTIONS = {question.id: question for question in OURS()}
ABOUT_PROFILES = [q for q in QUESTIONS.values() if q.id.startswith("profile-")]


def found(tmp_path: Path, case: str, id: str) -> list[Finding]:
    verdict = evaluate(made.write_bundle(tmp_path / "b", PROFILES[case]), [QUESTIONS[id]])
    assert not verdict.not_checked
    return verdict.found


@pytest.mark.parametrize("question", ABOUT_PROFILES, ids=lambda q: q.id)
def test_without_profiles_none_is_checked(tmp_path: Path, question: Question) -> None:
    contents = {"zones": made.tables()["zones"]}
    verdict = evaluate(made.write_bundle(tmp_path / "b", contents), [question])
    (missing,) = verdict.not_checked
    assert "no table profile" in missing.reason


@pytest.mark.parametrize("question", ABOUT_PROFILES, ids=lambda q: q.id)
def test_without_rows_of_the_first_table_that_it_needs_nothing_is_found(
    tmp_path: Path, question: Question
) -> None:
    """Such a question is not asked. Here it is, of all the rest of some profiles."""
    database = open_database(made.write_bundle(tmp_path / "b", made.profile_rows()))
    table = question.needs[0].partition(".")[0]
    database.connection.execute(f'delete from "{table}"')
    assert not database.rows(query_of(database.columns, question))


def test_an_end_that_takes_a_third_of_the_time_is_told(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "as they are", "profile-exit-share")
    assert "53.7 %" in finding.title
    assert "35.2 % clearing" in finding.saw and "18.5 % freeing" in finding.saw


def test_an_end_that_takes_a_tenth_is_not(tmp_path: Path) -> None:
    assert not found(tmp_path, "an end of a tenth", "profile-exit-share")


def test_what_memory_says_of_page_tables_stands_beside_it(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "page tables beside", "profile-exit-share")
    assert "sparse has the page tables that take longest to walk: 10,240,000 slots" in finding.saw
    database = open_database(Bundle(tmp_path / "b"))
    rows = database.rows("select * from profile_exit_slots")
    assert rows[0]["comm"] == "sparse" and rows[0]["zap_samples"] == 300


def test_a_victim_that_walks_again_is_told(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "as they are", "profile-unmapped-twice")
    assert "290 samples of the victim" in finding.saw and "80 samples of the reaper" in finding.saw


def test_a_victim_that_has_little_left_is_not(tmp_path: Path) -> None:
    assert not found(tmp_path, "a victim with little left", "profile-unmapped-twice")


def test_samples_that_hide_others_are_told(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "as they are", "profile-interrupts-off")
    assert finding.title.startswith("13.9 % of the cpu-clock samples of exit_path_never are skid")
    assert "exc_page_fault: the way in" in finding.saw and finding.harm == HIDES


def test_a_few_such_samples_are_not(tmp_path: Path) -> None:
    assert not found(tmp_path, "few samples that hide others", "profile-interrupts-off")


def test_lost_samples_are_told_from_one_per_cent_on(tmp_path: Path) -> None:
    assert not found(tmp_path / "few", "as they are", "profile-samples-lost")
    (finding,) = found(tmp_path / "many", "a hundred lost samples", "profile-samples-lost")
    assert "8.0 %" in finding.title and "could not write 100" in finding.saw


def test_views_join_profiles_and_memory(tmp_path: Path) -> None:
    database = open_database(made.write_bundle(tmp_path / "b", PROFILES["as they are"]))
    shares = database.rows("select distinct exit_share from profile_exits")
    assert [round(row["exit_share"], 3) for row in shares] == [0.537]
    assert "profile_exit_slots" in database.missing  # without page_tables


def test_faults_that_make_tables_are_told(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "faults that make tables", "profile-fault-tables")
    assert "50.0 %" in finding.title
    assert "900 faults touched 890 regions of 2 MiB" in finding.saw
    assert "80,000 KiB of them sparse's" in finding.saw


def test_faults_that_fill_pages_are_not(tmp_path: Path) -> None:
    assert not found(tmp_path, "faults that fill pages", "profile-fault-tables")


def test_a_long_walk_is_told_beside_what_memory_predicts(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "a long walk, and KSM pages", "profile-rmap-long")
    # Without probes on the waits, the time is both; and a KSM page's is the sum of many holds.
    assert "705.0 ms, its waits for locks included" in finding.title
    assert "could not be seen" in finding.saw and "sum of these holds" in finding.why
    assert "5,120,000 visits in the worst case, 256 would do" in finding.saw


def test_a_walk_that_only_waited_is_a_victim_and_not_told(tmp_path: Path) -> None:
    assert not found(tmp_path, "a walk that only waited", "profile-rmap-long")


def test_a_walk_that_holds_its_lock_is_told_without_its_waits(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "a walk that holds its lock", "profile-rmap-long")
    assert "a rmap_walk_anon took 40.0 ms without its waits for locks" in finding.title
    assert "waited 21.0 ms for locks at most" in finding.saw
    assert "all that time" in finding.why and "KSM" not in finding.why


def test_walks_of_ksm_pages_among_the_others_are_named(tmp_path: Path) -> None:
    whole, ksm = found(tmp_path, "walks of KSM pages among others", "profile-rmap-long")
    assert "KSM pages are among these" in whole.why and "sum of these holds" in ksm.why


def test_short_walks_are_not(tmp_path: Path) -> None:
    assert not found(tmp_path, "short walks", "profile-rmap-long")


def test_who_reserves_is_told_beside_the_reserve(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "who reserves", "profile-atomic-callers")
    assert "8 pageblocks became HighAtomic reserve, most through icmp_reply_[k]" in finding.title
    assert "2 of 900 such allocations failed" in finding.title
    assert "(order 1), 180 were served from the reserve" in finding.saw
    assert "6 of them through icmp_reply_[k]" in finding.saw
    assert "pages are HighAtomic reserve" in finding.saw


def test_failures_are_told_where_nobody_reserves(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "failures, and nobody reserves", "profile-atomic-callers")
    assert "7 of 500 such allocations failed" in finding.title


def test_where_it_cannot_be_seen_who_reserves_that_is_said(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "reservations that cannot be seen", "profile-atomic-callers")
    assert "500 atomic allocations" in finding.title and "could not be seen" in finding.saw
    assert "served" not in finding.saw


def test_many_atomic_allocations_that_reserve_nothing_are_none_to_tell(tmp_path: Path) -> None:
    assert not found(tmp_path, "many, and nobody reserves", "profile-atomic-callers")


def test_smaller_packets_are_advised_only_where_the_network_reserves(tmp_path: Path) -> None:
    for case, net in (("who reserves", True), ("a disk reserves", False)):
        (finding,) = found(tmp_path / case, case, "profile-atomic-callers")
        (step,) = (step for step in finding.next if step.do.startswith("Change the caller"))
        assert ("MTU" in step.text) is net


def test_nothing_is_to_be_changed_where_nothing_is_reserved(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "failures, and nobody reserves", "profile-atomic-callers")
    assert not any(step.do.startswith("Change") for step in finding.next)


@pytest.mark.parametrize(
    ("case", "id", "advised"),
    [
        # A page in each region, of huge pages or of others; regions of 400 pages.
        ("faults that make tables", "profile-fault-tables", False),
        ("faults with huge pages", "profile-fault-tables", False),
        ("faults that fill regions", "profile-fault-tables", True),
        # 4,096 bytes of tables a fault; huge pages; nothing that speaks against them.
        ("as they are", "profile-exit-share", False),
        ("an end of huge pages", "profile-exit-share", False),
        ("a victim of full tables", "profile-exit-share", True),
        # 324 KiB in 160 MiB of tables; 1 GiB in 2 MiB of them.
        ("as they are", "profile-unmapped-twice", False),
        ("an end of huge pages", "profile-unmapped-twice", False),
        ("a victim of full tables", "profile-unmapped-twice", True),
    ],
)
def test_huge_pages_are_advised_where_they_would_help(
    tmp_path: Path, case: str, id: str, advised: bool
) -> None:
    (finding,) = found(tmp_path, case, id)
    assert any("MADV_HUGEPAGE" in step.text for step in finding.next) is advised


def test_huge_pages_that_are_in_use_are_said(tmp_path: Path) -> None:
    (finding,) = found(tmp_path / "a", "faults with huge pages", "profile-fault-tables")
    assert "THP is in use: 50 of them pass through do_huge_pmd_anonymous_page()" in finding.saw
    (finding,) = found(tmp_path / "b", "an end of huge pages", "profile-exit-share")
    assert "50.0 % of exit clears them (zap_huge_pmd)" in finding.saw


class TestOfAnotherBoot:
    """A recording says nothing of what memory holds after another boot."""

    @pytest.mark.parametrize(("case", "id", "said"), [(k, *v) for k, v in BESIDE_MEMORY.items()])
    def test_memory_now_is_that_of_its_own_boot(
        self, tmp_path: Path, case: str, id: str, said: str
    ) -> None:
        (here,) = found(tmp_path / "this", f"{case}, this boot", id)
        assert "In memory now, " in here.saw and said in here.saw and not here.aside
        (other,) = found(tmp_path / "other", f"{case}, another boot", id)
        assert "In memory now" not in other.saw and said not in other.saw
        assert other.saw.endswith("Recorded during another boot than the rest of this bundle.")
        assert other.aside == " (another boot)"
        (unknown,) = found(tmp_path / "unknown", case, id)
        assert "In memory now (perhaps of another boot), " in unknown.saw and said in unknown.saw

    def test_every_finding_about_a_recording_tells(self, tmp_path: Path) -> None:
        """Each case of above, whatever it is about."""
        told = set()
        for number, contents in enumerate(PROFILES.values()):
            bundle = made.write_bundle(tmp_path / str(number), booted(contents, -86_400))
            about = evaluate(bundle, ABOUT_PROFILES).found
            assert all(f.other_boot for f in about), about
            told |= {f.id for f in about}
        assert told == {question.id for question in ABOUT_PROFILES}

    def test_no_query_joins_a_recording_with_memory_without_asking(self) -> None:
        profiles = {name for name in TABLES if name.startswith("profile")}
        memory = TABLES.keys() - profiles - {"kernel_features"}
        asked = {name: text for name, _, text in views()}
        asked |= {id: " ".join(named([q])) for id, q in QUESTIONS.items()}
        joins = []
        for name, text in asked.items():
            words = set(re.findall(r"\w+", re.sub("--.*", "", text)))
            if words & profiles and words & memory:
                joins.append(name)
                assert "profile_boots" in words, name
        assert len(joins) >= 7

    @pytest.mark.parametrize(
        ("seconds", "release", "same"),
        [
            (SAME_BOOT_SECONDS - 1, made.TARGET["release"], True),
            (-SAME_BOOT_SECONDS + 1, "7.2", True),
            (SAME_BOOT_SECONDS + 1, made.TARGET["release"], False),
            (-SAME_BOOT_SECONDS - 1, made.TARGET["release"], False),
            (0, "6.12.117+deb13-cloud-amd64", False),
        ],
    )
    def test_boots_are_told_apart_as_elsewhere(
        self, tmp_path: Path, seconds: float, release: str, same: bool
    ) -> None:
        contents = booted(PROFILES["as they are"], seconds, release)
        database = open_database(made.write_bundle(tmp_path / "b", contents))
        rows = database.rows("select distinct same_boot from profile_boots")
        assert rows == [{"same_boot": same}]

    def test_what_a_text_of_another_kernel_does_not_say_is_not_guessed(
        self, tmp_path: Path
    ) -> None:
        contents = booted(PROFILES["as they are"], 0)
        title, row_type, rows, section = contents["profile_recordings"]
        rows = [dataclasses.replace(row, booted_at="not a date") for row in rows]
        contents["profile_recordings"] = (title, row_type, rows, section)
        database = open_database(made.write_bundle(tmp_path / "b", contents))
        rows = database.rows("select distinct same_boot from profile_boots")
        assert rows == [{"same_boot": None}]

    def test_views_do_not_join_it(self, tmp_path: Path) -> None:
        for case, view, column in (
            ("page tables beside", "profile_exit_slots", "exit_pte_slots"),
            ("a long walk, and KSM pages", "profile_rmap", "ksm_visits_at_worst"),
            ("who reserves", "profile_atomic", "highatomic_reserved_pages"),
        ):
            for boot, there in (("this", True), ("another", False)):
                contents = PROFILES[f"{case}, {boot} boot"]
                database = open_database(made.write_bundle(tmp_path / f"{view}{boot}", contents))
                rows = database.rows(f"select {column} from {view}")
                assert any(row[column] is not None for row in rows) is there

    @pytest.mark.parametrize(
        ("seconds", "beside", "words", "goal"),
        [
            (0, (), "Why does exit take long?", "finding-"),
            (60, (), "Why does exit take long? (another boot)", "finding-"),
            (60, ("exit_costs",), "Why does exit take long?", "table-exit_costs"),
        ],
    )
    def test_it_answers_a_question_last_and_says_so(
        self, tmp_path: Path, seconds: float, beside: tuple[str, ...], words: str, goal: str
    ) -> None:
        rows = made.tables_of("page_tables")
        contents = booted(PROFILES["as they are"], seconds) | {name: rows[name] for name in beside}
        bundle = made.write_bundle(tmp_path / "b", contents)
        page = render(bundle, evaluate(bundle))
        (asked,) = re.findall(r'href="#([^"]+)">(Why does exit[^<]*)<', page)
        assert asked[1] == words and asked[0].startswith(goal)

    def test_the_first_screen_says_so(self, tmp_path: Path) -> None:
        contents = booted(PROFILES["as they are"], 60)
        bundle = made.write_bundle(tmp_path / "b", contents)
        page = render(bundle, evaluate(bundle))
        (sentence,) = re.findall(r'<p class="verdict">([^<]*)', page)
        assert "that the reaper had cleared (another boot)" in sentence
