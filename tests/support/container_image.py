# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The image of ``deploy/``, built and run without a registry (``make containers``).

The manifests are held against Kubernetes' schemas. The Containerfile is built by buildah from the
commit that is checked out, on a base of Debian 13 with its Python, which mmdebstrap makes, in place
of the one that the Containerfile names. Then the image does what the manifests have it do: guard
watches until it is told to end, and what is collected becomes findings and a report.

Costs: a root of Debian and the wheels (100 MB each fetched, none kept), some minutes. Needs root,
mmdebstrap and buildah. Cannot: tell what a runtime or a cluster forbids, since buildah runs it in
a chroot with this machine's /proc; or that the base named in the Containerfile can be had.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tools")]

from make_deb import MMDEBSTRAP, ROOT, SUITE, archive  # noqa: E402

PACKAGES = ("ca-certificates", "python-is-python3", "python3-venv")
MANIFESTS = sorted((ROOT / "deploy").glob("*.yaml"))
# Where pip has its wheels from, and whom it trusts, is this machine's matter.
PIP = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
ISOLATION = ["--isolation", "chroot"]
CASE = """
set -e
mmscope --version
code=0; mmscope collect --proc-root / --no-findings -o /tmp/case || code=$?; [ $code -le 1 ]
mmscope findings /tmp/case > /tmp/findings.txt
mmscope report /tmp/case -o /tmp/report.html
ls -s /tmp/findings.txt /tmp/report.html
"""
# A capture is not waited for: what it takes here is tests/lab/guard_incidents.py's to say.
WATCH = """
mmscope guard run --text & guard=$!
sleep 15
kill -TERM $guard
wait $guard; code=$?
ls /var/lib/mmscope/guard
exit $code
"""


class Buildah:
    """Images and containers in a folder of their own, that goes with it."""

    def __init__(self, folder: Path) -> None:
        self._store = ["--root", str(folder / "store"), "--runroot", str(folder / "run")]
        # Needs no file system that can be laid over another.
        self._store += ["--storage-driver", "vfs"]

    def __call__(self, *words: str | Path) -> str:
        done = subprocess.run(
            ["buildah", *self._store, *map(str, words)], stdout=subprocess.PIPE, text=True, cwd="/"
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, words, done.stdout)
        return done.stdout.strip()

    def shell(self, container: str, script: str) -> str:
        """Run a script in a container."""
        return self("run", *ISOLATION, container, "--", "sh", "-c", script)


def base(folder: Path, buildah: Buildah) -> str:
    """An image of Debian with its Python: what the Containerfile asks of its own base."""
    root = folder / "base.tar"
    include = f"--include={','.join(PACKAGES)}"
    subprocess.run([*MMDEBSTRAP, "--variant=minbase", include, SUITE, str(root)], check=True)
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, root, "/")
    settings = [f"{name[4:].lower().replace('_', '-')} = {os.environ[name]}\n" for name in PIP
                if os.environ.get(name)]  # fmt: skip
    (folder / "pip.conf").write_text("[global]\n" + "".join(settings))
    buildah("copy", "--quiet", container, folder / "pip.conf", "/etc/pip.conf")
    if CERTIFICATES.exists():
        buildah("copy", "--quiet", container, CERTIFICATES, CERTIFICATES)
    buildah("commit", "--quiet", "--rm", container, "localhost/base")
    root.unlink()
    return "localhost/base"


def build(folder: Path, buildah: Buildah) -> str:
    """The Containerfile's image, of the commit."""
    context = folder / "context"
    context.mkdir()
    archive(folder, prefix="context", output="context.tar")
    subprocess.run(["tar", "-xf", folder / "context.tar", "-C", folder], check=True)
    recipe = context / "deploy/Containerfile"
    words = ["--build-arg", f"PYTHON={base(folder, buildah)}", "--file", recipe]
    buildah("build", "--quiet", *ISOLATION, *words, "--tag", "localhost/mmscope", context)
    return "localhost/mmscope"


def check(folder: Path, buildah: Buildah) -> None:
    """Build it, and have it do what the manifests say."""
    image = build(folder, buildah)
    about = json.loads(buildah("inspect", "--type", "image", image))["OCIv1"]
    config = about["config"]
    print(f"entry point {config['Entrypoint']}, command {config['Cmd']}, {list(config['Volumes'])}")
    assert (config["Entrypoint"], config["Cmd"]) == (["mmscope"], ["guard", "run"])
    container = buildah("from", image)
    room = buildah("mount", container)
    size = sum(path.lstat().st_size for path in Path(room, "opt").rglob("*"))
    print(f"/opt/mmscope takes {size >> 20:,} MiB")
    assert not list(Path(room, "opt").rglob("pytest*")), "what only tests need"
    print(buildah.shell(container, CASE))
    report = Path(room, "tmp/report.html").read_text()
    assert re.search("<!doctype html>", report[:200], re.IGNORECASE)
    left = buildah.shell(container, WATCH).split()
    print(f"guard watched, was told to end, and left {left}")
    assert "index.html" in left


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="mmscope-container-") as name:
        folder = Path(name)
        buildah = Buildah(folder)
        try:
            validate = shutil.which("kubernetes-validate", path=str(Path(sys.executable).parent))
            assert validate, "kubernetes-validate is not installed: make containers"
            subprocess.run([validate, "--strict", *map(str, MANIFESTS)], check=True)
            check(folder, buildah)
        except (AssertionError, subprocess.CalledProcessError) as error:
            print(f"container_image.py: {error}", file=sys.stderr)
            return 1
        finally:
            # What is mounted would keep the folder.
            subprocess.run(["buildah", *buildah._store, "rm", "--all"], stdout=subprocess.DEVNULL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
