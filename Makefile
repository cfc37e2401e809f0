# SPDX-License-Identifier: LGPL-2.1-or-later
# `make help` lists what there is. Everything needs only git, python3, make and, for what is
# installed with apt, root.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LAB_TESTS := $(BIN)/pytest -p no:cacheprovider
# Types of the package and of tools/ in one run; what it knows is kept for other checkouts.
MYPY := MYPYPATH=tools $(BIN)/mypy --cache-dir "$${XDG_CACHE_HOME:-$$HOME/.cache}/mmscope/mypy" \
  -p mmscope $(patsubst tools/%.py,-m %,$(wildcard tools/*.py))
LINT := $(BIN)/ruff format --check . && $(BIN)/ruff check . && $(MYPY)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start the command hundreds of times: what Python compiles is kept, whatever the caller has set.
export PYTHONDONTWRITEBYTECODE :=

# Debian packages: to make the environment; to boot kernels (qemu, a C compiler for the guest's init,
# cpio for its initramfs); to open the report in a browser, and the FlameGraph that its flame graphs
# are held against.
VENV_PACKAGES := python3-venv
LAB_PACKAGES := qemu-system-x86 gcc libc6-dev cpio xz-utils e2fsprogs linux-perf
# To boot those of arm64, where a list of kernels has one.
ARM64_PACKAGES := qemu-system-arm gcc-aarch64-linux-gnu libc6-dev-arm64-cross
PPC64EL_PACKAGES := qemu-system-ppc gcc-powerpc64le-linux-gnu libc6-dev-ppc64el-cross
# To build the kernel with PAGE_OWNER.
BUILD_PACKAGES := bc flex bison libelf-dev libssl-dev
# And the one that clang builds, with BTF.
CLANG_PACKAGES := clang-19 lld-19 llvm-19 pahole
TEST_PACKAGES := chromium-headless-shell pngquant libdevel-nytprof-perl zstd makedumpfile libsnappy1v5
BENCH_PACKAGES := crash
DEB_PACKAGES := mmdebstrap dpkg-dev debian-archive-keyring
# To run programs of arm64 without a kernel of theirs.
BOX_ARM64_PACKAGES := qemu-user-static
SPARK_PACKAGES := default-jre-headless
CONTAINER_PACKAGES := buildah mmdebstrap debian-archive-keyring
PICTURE_PACKAGES := chromium-headless-shell pngquant

VMCORE ?=
VMLINUX ?=
REPORT ?= report.html
DIST_PYTHON ?=
KERNELS ?= 5.10?,6.1,6.16?,6.17?,6.18?,6.19?,7.0?,7.1?,rt-6.12?,standard-6.12?,standard-7.3?,7.2?,7.3?,arm64-6.1?,arm64-6.12?,arm64-7.2?,arm64-7.3?,arm64-16k-6.12?,arm64-16k-7.2?,arm64-16k-7.3?,ppc64el-6.12?,ppc64el-7.2?,ppc64el-64k-6.12?
# A kernel that make test takes along, beside the one that it stands on.
ALSO ?=
# Kernels, with commas between, that it holds the few tests marked brief against: 5.10?,arm64-6.12?
BRIEFLY ?=

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## make .venv with the mmscope command in it

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mmscope needs Python 3.11 or newer; this is " + sys.version.split()[0])'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || tools/apt-install $(VENV_PACKAGES)
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	@# setuptools warns of every editable install.
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: demo
demo: $(READY) ## boot a kernel, drive it into trouble, and write demo/report.html about it
	@tools/apt-install $(LAB_PACKAGES)
	@$(BIN)/python tests/lab/demo.py

demo/report.html:
	@$(MAKE) --no-print-directory demo

.PHONY: pictures
pictures: $(READY) demo/report.html ## the README's pictures, docs/*.png, of the demo's report and a comparison: PICTURES=FOLDER for another folder
	@tools/apt-install $(LAB_PACKAGES) $(BUILD_PACKAGES) $(PICTURE_PACKAGES)
	@$(BIN)/python tests/lab/pictures.py '$(or $(PICTURES),docs)'

.PHONY: inputs
inputs: $(READY) ## what `why` prints of some forty inputs, real vmcores among them, into docs/inputs.md
	@tools/apt-install $(LAB_PACKAGES) $(ARM64_PACKAGES) makedumpfile
	@$(BIN)/python tests/lab/why_page.py

.PHONY: report
report: $(READY) ## report of VMCORE=… VMLINUX=…, or of this machine without (as root)
	@set -e; bundle=$$(mktemp -d)/bundle; trap 'rm -rf "$$(dirname "$$bundle")"' EXIT; \
	code=0; $(BIN)/mmscope collect $(if $(VMCORE),--core '$(VMCORE)') $(if $(VMLINUX),--symbols '$(VMLINUX)') -o "$$bundle" || code=$$?; \
	if [ $$code -gt 1 ]; then exit $$code; fi; \
	$(BIN)/mmscope report "$$bundle" -o '$(REPORT)' || [ $$? -eq 1 ]; \
	if [ -n "$$SUDO_UID" ] && [ -f '$(REPORT)' ]; then chown "$$SUDO_UID:$$SUDO_GID" '$(REPORT)'; fi

# Files of tests that take minutes: they run the command, make reports, or ask every finding of every bundle.
LONG := report|lake|fleet|finding|redact|guard|watch|picture|hostile|page_owner|comparison|host_groups|click|command|bundle
LONG := $(LONG)|exam|lights|few_rows|crash|openmetrics|browser|asked|corpus|attack|nightly|children|flame|profile|pages|record|viewer|as_read|killed|hosts|containers
QUICK = $(shell find tests -name 'test_*.py' -not -path 'tests/lab/*' -not -path 'tests/s*/*' -not -path 'tests/notebooks/*' | grep -vE '/test_[a-z_0-9]*($(LONG))' | sort)
.PHONY: quick
quick: $(READY) ## lint, types, and the unit tests that need neither kernel nor browser nor minutes: two minutes
	$(LINT)
	$(BIN)/pytest -m 'not browser' $(QUICK)

.PHONY: test
test: $(READY) ## lint, types, unit tests, lab tests on real kernels, the report in a browser
	@tools/apt-install $(LAB_PACKAGES) $(TEST_PACKAGES) $(BUILD_PACKAGES) $(if $(findstring arm64,$(ALSO)$(BRIEFLY)),$(ARM64_PACKAGES))
	@# On a machine that has no kernels yet they are fetched and built meanwhile. Lint ends it all at once.
	@mkdir -p build; \
	$(BIN)/python tests/lab/kernels.py stable '$(ALSO)' '$(BRIEFLY)' owner > build/kernels.log 2>&1 & kernels=$$!; \
	$(MAKE) --no-print-directory --keep-going --jobs 3 $(PARTS:%=part-%) & parts=$$!; \
	stop() { kill $$parts $$kernels 2> /dev/null; wait $$parts $$kernels; exit 1; }; \
	trap stop INT TERM HUP; \
	{ $(LINT); } || stop; \
	code=0; wait $$parts || code=1; wait $$kernels; \
	cat build/kernels.log $(patsubst %,build/%.log,$(filter-out unit,$(PARTS))); \
	exit $$code

# Parts of `make test`. Three run beside each other, the longest first, and who ends takes the next, so that two CPUs
# are busy to the end: vmcores; what needs no kernel, as it comes; reports in a browser; live guests; the lab's tests of
# ALSO, without those of formats, commands and damage, for which one kernel is enough; and the few for those of BRIEFLY.
PARTS := lab unit browser live $(if $(ALSO),also) $(if $(BRIEFLY),brief)
# What the tests start is no part of this make: neither its jobs nor its variables are theirs.
PART = exec env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL
.PHONY: part-lab part-live part-unit part-also part-browser part-brief
part-lab:
	@$(PART) $(LAB_TESTS) -m 'not live' tests/lab > build/lab.log
part-live:
	@$(PART) $(LAB_TESTS) -m live tests/lab > build/live.log
part-unit:
	@$(PART) $(BIN)/pytest -m 'not browser' --ignore tests/lab --ignore tests/spark --ignore tests/s3 --ignore tests/protocol --ignore tests/notebooks
part-also:
	@$(PART) MMSCOPE_LAB_KERNELS='$(ALSO)' $(LAB_TESTS) -m 'not any_kernel' tests/lab > build/also.log
part-browser:
	@$(PART) $(LAB_TESTS) -m browser tests/reports > build/browser.log
part-brief:
	@$(PART) MMSCOPE_LAB_KERNELS='$(BRIEFLY)' $(LAB_TESTS) -m 'brief and not x86 and not odd_machine' tests/lab > build/brief.log

.PHONY: matrix
matrix: $(READY) ## the lab's tests on the other kernels: KERNELS=6.1,7.3?,arm64-6.1? (?: if it can be had)
	@tools/apt-install $(LAB_PACKAGES) $(TEST_PACKAGES) $(if $(findstring arm64,$(KERNELS)),$(ARM64_PACKAGES)) \
		$(if $(findstring ppc64el,$(KERNELS)),$(PPC64EL_PACKAGES))
	MMSCOPE_LAB_KERNELS='$(KERNELS)' $(BIN)/pytest tests/lab

.PHONY: configurations
configurations: $(READY) ## a kernel without SWAP, NUMA, MODULES, with SLUB_TINY, one with KASAN, by clang with LTO, arm64 with pages of 64 KiB, one of 7.3 with Kexec Handover, and 5.10 and 6.1 with PAGE_OWNER: builds them once (9, 12, 16, 13, 8 and 8 minutes of CPU)
	@tools/apt-install $(LAB_PACKAGES) $(BUILD_PACKAGES) $(CLANG_PACKAGES) $(ARM64_PACKAGES)
	MMSCOPE_LAB_KERNELS='small,checked,arm64-64k,handover,owner-5.10?,owner-6.1?' $(BIN)/pytest tests/lab

.PHONY: test-spark
test-spark: $(VENV)/.spark ## each finding on Spark, row for row as DuckDB has it (fetches 450 MB once)
	@tools/apt-install $(SPARK_PACKAGES)
	$(BIN)/pytest tests/spark

.PHONY: test-mcp
test-mcp: $(VENV)/.mcp ## `mmscope mcp` asked by the protocol's own client (fetches 70 MB once)
	$(BIN)/pytest tests/protocol

$(VENV)/.mcp: $(READY) requirements-mcp.lock
	$(BIN)/pip install --quiet --require-hashes -r requirements-mcp.lock
	@touch $@

.PHONY: test-notebook
test-notebook: $(VENV)/.notebook ## docs/notebook.ipynb as Jupyter runs it, with pandas and polars (fetches 150 MB once)
	$(BIN)/pytest tests/notebooks

$(VENV)/.notebook: $(READY) requirements-notebook.lock
	$(BIN)/pip install --quiet --require-hashes -r requirements-notebook.lock
	@touch $@

.PHONY: test-s3
test-s3: $(VENV)/.s3 ## what Go is needed for: a lake on a server that speaks as S3 does (built once: 4 minutes of CPU), pprof by its own reader
	MMSCOPE_S3_SERVER=$(S3_SERVER)/bin/versitygw $(BIN)/pytest tests/s3

# Go's checksum database vouches for what is fetched.
S3_SERVER = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/mmscope/lab/versitygw-1.8.0
$(VENV)/.s3: $(READY) requirements-s3.lock
	$(BIN)/pip install --quiet --require-hashes -r requirements-s3.lock
	@test -x $(S3_SERVER)/bin/versitygw || \
	  GOBIN=$(S3_SERVER)/bin GOPATH=$(CURDIR)/build/go GOCACHE=$(CURDIR)/build/go/cache GOFLAGS=-modcacherw CGO_ENABLED=0 \
	  $(BIN)/go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
	@rm -rf build/go
	@touch $@

$(VENV)/.spark: $(READY) requirements-spark.lock
	$(BIN)/pip install --quiet --require-hashes -r requirements-spark.lock
	@touch $@

# What no change is held against as it comes. Each is run, whatever became of those before it.
NIGHTLY := test-spark test-s3 test-mcp test-notebook pictures deb-try rpm guard-incidents healthy crash-kernel systemd-try kdump-try containers matrix configurations asked-check sources drgn-suite drgn-versions box box-arm64 live-arm64 bench-lake attack every-case
.PHONY: every-case
every-case: $(READY) ## all cases of what `make test` asks a share of: made machines, the exam's cases, calls that fail, pipx (a quarter of an hour)
	@tools/apt-install $(LAB_PACKAGES) $(TEST_PACKAGES)
	MMSCOPE_ALL=1 $(BIN)/pytest -q $$(grep -rl --include 'test_*.py' MMSCOPE_ALL tests)

.PHONY: nightly
nightly: export HOSTS ?= 100,1000
nightly: export ATTACKS ?= 10000
nightly: export PICTURES ?= build/pictures
nightly: ## all that takes too long for each change, one after the other, and what failed of it (a night and a day; as root; some 110 GB of disk)
	@failed=; trap 'trap "" TERM; kill $$child 2> /dev/null; wait; exit 143' TERM INT HUP; \
	for target in $(NIGHTLY); do \
	  echo "$$target:"; $(MAKE) --no-print-directory "$$target" & child=$$!; \
	  wait $$child || failed="$$failed $$target"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

.PHONY: exam
exam: $(READY) ## score on planted and innocent machines, in guests: SEED=1 KINDS=… WAYS=vmcore,text,watch,log KERNEL=6.12 SHAPE=large CASES=folder KEEP=1 (1.5 minutes a kind)
	@tools/apt-install $(LAB_PACKAGES)
	@$(BIN)/python tests/lab/exam.py $(if $(SEED),--seeds $(SEED)) $(if $(KINDS),--kinds $(KINDS)) \
	  $(if $(WAYS),--ways $(WAYS)) $(if $(CASES),--cases '$(CASES)') $(if $(KEEP),--keep) $(if $(KERNEL),--kernel $(KERNEL)) \
	  $(if $(SHAPE),--shape $(SHAPE))

.PHONY: exam-kept
exam-kept: $(READY) ## the score of all kept cases of the exam, of which `make test` asks some (a minute); their cards: make every-case
	MMSCOPE_ALL=1 $(BIN)/python -m pytest -q tests/exam/test_exam.py

.PHONY: guard-incidents
guard-incidents: $(READY) ## mmscope guard in a guest: out of memory, out of huge blocks, and a leak (5 minutes)
	@tools/apt-install $(LAB_PACKAGES)
	@$(BIN)/python tests/lab/guard_incidents.py

.PHONY: healthy
healthy: $(READY) ## 10,000 readings of what tasks wait for in a busy, healthy guest: no circle, no lock without holder; one that thrashes is told (READINGS=… KERNEL=…; four hours at most; nightly)
	@tools/apt-install $(LAB_PACKAGES)
	$(BIN)/python tests/lab/healthy.py $(or $(KERNEL),stable) $(or $(READINGS),10000)

.PHONY: crash-kernel
crash-kernel: $(READY) ## the hook for the crash kernel in one, as it is meant, killed, with too little memory, time and disk: KERNEL=7.2 MEMORY=4G (20 minutes; nightly)
	@tools/apt-install $(LAB_PACKAGES)
	@$(BIN)/python tests/lab/crash_kernel.py $(or $(KERNEL),stable) $(or $(MEMORY),1536M)

.PHONY: containers
containers: $(VENV)/.containers ## deploy/: manifests by the schemas of Kubernetes, the image of this commit built and run (10 minutes)
	@tools/apt-install $(CONTAINER_PACKAGES)
	@$(BIN)/python tests/support/container_image.py

$(VENV)/.containers: $(READY) requirements-containers.lock
	$(BIN)/pip install --quiet --require-hashes -r requirements-containers.lock
	@touch $@

.PHONY: seen
seen: $(READY) ## docs/kernels.md: read every section of KERNELS anew, and say what came of it
	@tools/apt-install $(LAB_PACKAGES) $(if $(findstring arm64,$(KERNELS)),$(ARM64_PACKAGES)) \
		$(if $(findstring ppc64el,$(KERNELS)),$(PPC64EL_PACKAGES))
	@$(BIN)/python tests/lab/seen.py '$(KERNELS)'
	@$(BIN)/python tools/make_docs.py

.PHONY: sources
sources: $(READY) ## whether the functions that findings name as their source are in that file of that kernel, by Debian's sources of 5.10 to 7.3 (5 minutes, 700 MB fetched; nightly)
	@tools/apt-install $(LAB_PACKAGES)
	@$(BIN)/python tests/lab/named_sources.py

.PHONY: asked
asked: $(READY) ## drgn/opening/asked.toml, known_types.txt: what each section asks of kernels' types, for mmscope kernel; and what that foretells: ONLY="6.12 7.2" for some (15 minutes)
	@tools/apt-install $(LAB_PACKAGES) $(ARM64_PACKAGES)
	@$(BIN)/python tests/lab/asks.py $(ONLY)
	@$(BIN)/python tests/lab/foretell.py
	@$(BIN)/python tools/make_docs.py

.PHONY: asked-check
asked-check: $(READY) ## whether sections still ask what asked.toml says, of a vmcore of each kernel (5 minutes; nightly)
	@tools/apt-install $(LAB_PACKAGES) $(ARM64_PACKAGES)
	@$(BIN)/python tests/lab/asks.py --check

.PHONY: drgn-suite
drgn-suite: $(READY) ## drgn's own tests for Linux in a stock guest, with DWARF and without: KERNEL=7.2, DRGN=FOLDER for a checkout (10 minutes; nightly)
	@tools/apt-install $(LAB_PACKAGES)
	@$(BIN)/python tests/lab/drgn_suite.py --kernel $(or $(KERNEL),stable) $(if $(DRGN),'$(DRGN)')

.PHONY: drgn-versions
drgn-versions: $(READY) ## a vmcore and a bundle with other versions of drgn, and installed Pythons, cell by cell: VERSIONS="0.1.0 0.3.0"
	@tools/apt-install $(LAB_PACKAGES)
	@$(BIN)/python tests/support/drgn_versions.py $(VERSIONS)

.PHONY: box
box: $(READY) ## the same vmcore with other Pythons in roots of Debian, each with every version of drgn (10 minutes)
	@tools/apt-install $(LAB_PACKAGES) $(DEB_PACKAGES)
	@$(BIN)/python tests/support/box_versions.py $(PYTHONS)

.PHONY: box-arm64
box-arm64: $(READY) ## the same on arm64, emulated, with Debian's drgn of arm64 (5 minutes of CPU time; nightly)
	@tools/apt-install $(LAB_PACKAGES) $(ARM64_PACKAGES) $(DEB_PACKAGES) $(BOX_ARM64_PACKAGES)
	@$(BIN)/python tests/support/box_versions.py arm64

.PHONY: live-arm64
live-arm64: $(READY) ## a running arm64, emulated, with Debian's Python, drgn and perf: probes, watch, guard, recordings (15 minutes of CPU time; nightly)
	@tools/apt-install $(LAB_PACKAGES) $(TEST_PACKAGES) $(ARM64_PACKAGES) $(DEB_PACKAGES)
	MMSCOPE_LAB_LIVE=arm64-6.12 $(BIN)/pytest -m live $(addprefix tests/lab/test_,$(addsuffix .py,live live_guard live_rmap live_watch profiles))

.PHONY: soak
soak: $(READY) ## a vmcore damaged in a thousand ways: nothing may crash, hang or grow (an hour)
	@tools/apt-install $(LAB_PACKAGES)
	$(BIN)/python tests/support/soak.py $(if $(SEEDS),--seeds $(SEEDS))

.PHONY: silent-lies
silent-lies: $(READY) ## single damaged fields of three vmcores: how often nothing is said (TIMES=1000, an hour)
	@tools/apt-install $(LAB_PACKAGES) $(ARM64_PACKAGES)
	$(BIN)/python tests/support/silent_lies.py $(if $(TIMES),--times $(TIMES))

.PHONY: fuzz
fuzz: $(VENV)/.fuzz ## what readers of other people's files make of anything: SECONDS=60 each
	$(BIN)/python tests/support/fuzz.py $(if $(SECONDS),--seconds $(SECONDS))

$(VENV)/.fuzz: $(READY) requirements-fuzz.lock
	$(BIN)/pip install --quiet --require-hashes -r requirements-fuzz.lock
	@touch $@

.PHONY: attack
attack: $(READY) ## what strangers may send, made by chance, and what the commands make of it: ATTACKS=300, SECONDS=…, SEED=… (ten minutes)
	@$(BIN)/python tests/support/attack.py $(if $(ATTACKS),--attacks $(ATTACKS)) $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS))

.PHONY: lint
lint: $(READY) ## ruff and mypy
	$(LINT)

.PHONY: types
types: $(READY) ## mypy alone
	$(MYPY)

.PHONY: bench
bench: $(READY) ## how fast the commands and the passes are, beside drgn, crash and the naive way
	@tools/apt-install $(LAB_PACKAGES) $(BUILD_PACKAGES) $(BENCH_PACKAGES) $(TEST_PACKAGES)
	@$(BIN)/python tests/bench/bench_report.py
	@$(BIN)/python tests/bench/bench_opening.py
	@$(BIN)/python tests/bench/bench.py
	@$(BIN)/python tests/bench/bench_page_owner.py
	@$(BIN)/python tests/bench/bench_rmap.py
	@$(BIN)/python tests/bench/bench_scale.py
	@$(BIN)/python tests/bench/bench_prices.py
	@$(BIN)/python tests/bench/bench_logs.py
	@$(BIN)/python tests/bench/bench_inputs.py

.PHONY: bench-growth
bench-growth: $(READY) ## how cost grows with pages, stacks, processes and hosts, drawn in docs/: an hour, mostly to boot 100,000 processes
	@tools/apt-install $(LAB_PACKAGES) $(BUILD_PACKAGES)
	@$(BIN)/python tests/bench/bench_growth.py

.PHONY: bench-lake
bench-lake: $(VENV)/.spark ## a lake of 100, 1,000 and 10,000 hosts: adding, findings on DuckDB and Spark (HOSTS=100,1000; an hour of CPU)
	@tools/apt-install $(SPARK_PACKAGES)
	@$(BIN)/python tests/bench/bench_lake.py --spark $(if $(HOSTS),--hosts $(HOSTS))

.PHONY: docs
docs: $(READY) ## docs/tables.md, docs/kernels.md and the commands of drgn, from declarations and data
	@$(BIN)/python tools/make_docs.py

.PHONY: site
site: $(VENV)/.site ## build/site: docs/ as pages, with the reference of commands and probes; a dead link fails
	@$(BIN)/python tools/make_site.py

$(VENV)/.site: $(READY) requirements-site.lock
	$(BIN)/pip install --quiet --require-hashes -r requirements-site.lock
	@touch $@

.PHONY: gallery
gallery: $(READY) ## build/gallery: reports of eight incidents that the lab made, and build/gallery.md about them
	@$(BIN)/python tools/make_gallery.py build/gallery

.PHONY: release-check
release-check: $(READY) ## whether this commit can be released (docs/RELEASING.md): versions, changelogs, docs, tag
	@$(BIN)/python tools/release_check.py

.PHONY: dist
dist: $(READY) ## dist/mmscope.pyz, one file for a box without pip; DIST_PYTHON="3.11 3.13" for others' Pythons
	@$(BIN)/python tools/make_dist.py $(addprefix --python ,$(DIST_PYTHON))

.PHONY: runtime
runtime: $(READY) ## dist/mmscope-runtime.tar.xz: a root with a Python of its own, for the crash kernel of a system without (as root)
	@$(BIN)/python tools/make_runtime.py dist/mmscope-runtime.tar.xz

.PHONY: manuals
manuals: $(READY) ## build/manuals: manual pages, completion for bash, zsh and fish
	@$(BIN)/python tools/make_manuals.py build/manuals

.PHONY: deb
deb: $(READY) ## dist/deb: packages of this commit for Debian 13, built in a clean root; lintian's errors fail
	@tools/apt-install $(DEB_PACKAGES)
	@$(BIN)/python tools/make_deb.py build dist/deb

.PHONY: deb-try
deb-try: $(READY) ## install dist/deb in a clean root of Debian 13 and run debian/tests
	@tools/apt-install $(DEB_PACKAGES)
	@[ "$$(cat dist/deb/.commit 2> /dev/null)" = "$$(git rev-parse HEAD)" ] || $(MAKE) --no-print-directory deb
	@$(BIN)/python tools/make_deb.py try dist/deb

.PHONY: rpm
rpm: $(READY) ## dist/rpm: an rpm of this commit, by Debian's rpmbuild; rpmlint's errors fail; unpacked and tried
	@tools/apt-install rpm rpmlint
	@$(BIN)/python tools/make_rpm.py dist/rpm

.PHONY: systemd-try
systemd-try: $(READY) ## the packages under systemd in a guest: dumps become reports, guard captures (20 minutes; nightly)
	@tools/apt-install $(LAB_PACKAGES) $(TEST_PACKAGES) $(DEB_PACKAGES)
	@[ "$$(cat dist/deb/.commit 2> /dev/null)" = "$$(git rev-parse HEAD)" ] || $(MAKE) --no-print-directory deb
	@$(BIN)/python tests/lab/systemd_try.py

.PHONY: kdump-try
kdump-try: $(READY) ## the packages beside Debian 13's kdump-tools in a guest: it crashes, the crash kernel's systemd runs the unit before the dump, it reboots (10 minutes; nightly)
	@tools/apt-install $(LAB_PACKAGES) $(TEST_PACKAGES) $(DEB_PACKAGES)
	@[ "$$(cat dist/deb/.commit 2> /dev/null)" = "$$(git rev-parse HEAD)" ] || $(MAKE) --no-print-directory deb
	@$(BIN)/python tests/lab/kdump_try.py

.PHONY: kdump-utils-try
kdump-utils-try: $(READY) ## the packages in a root that kdump.sh of RHEL's kdump-utils saves a dump to, in its own initramfs: KDUMP_UTILS=FOLDER, a checkout (5 minutes; as root)
	@[ -d '$(KDUMP_UTILS)' ] || { echo 'KDUMP_UTILS=FOLDER: a checkout of github.com/rhkdump/kdump-utils' >&2; exit 2; }
	@tools/apt-install $(LAB_PACKAGES) $(TEST_PACKAGES) $(DEB_PACKAGES)
	@[ "$$(cat dist/deb/.commit 2> /dev/null)" = "$$(git rev-parse HEAD)" ] || $(MAKE) --no-print-directory deb
	@$(BIN)/python tests/lab/kdump_utils_try.py '$(KDUMP_UTILS)'

.PHONY: lock
lock: $(READY) ## renew requirements.lock, and those of the image, fuzz, spark, s3, mcp, notebook, site and containers, from pyproject.toml
	$(BIN)/pip-compile $(LOCK) --extra dev --extra report --output-file requirements.lock pyproject.toml
	@# The same versions of what both need.
	$(BIN)/pip-compile $(LOCK) --extra report --build-deps-for wheel --constraint requirements.lock \
	  --output-file requirements-image.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK) --extra fuzz --constraint requirements.lock \
	  --output-file requirements-fuzz.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK) --extra report --extra spark --constraint requirements.lock \
	  --output-file requirements-spark.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK) --extra report --extra s3 --extra test-s3 --constraint requirements.lock \
	  --output-file requirements-s3.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK) --extra report --extra mcp --constraint requirements.lock \
	  --output-file requirements-mcp.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK) --extra report --extra test-notebook --constraint requirements.lock \
	  --output-file requirements-notebook.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK) --extra site --constraint requirements.lock \
	  --output-file requirements-site.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK) --extra test-containers --constraint requirements.lock \
	  --output-file requirements-containers.lock pyproject.toml

LOCK := --quiet --upgrade --strip-extras --generate-hashes --allow-unsafe --no-emit-index-url \
  --no-emit-find-links --no-emit-trusted-host --no-header --no-annotate

.PHONY: clean
clean: ## remove what was made here; kernels and vmcores stay in the cache
	rm -rf $(VENV) demo dist .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
