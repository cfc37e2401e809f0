# SPDX-License-Identifier: LGPL-2.1-or-later
"""What every test needs: the script folders on the path, and Hypothesis that repeats itself."""

import hypothesis

import reports  # noqa: F401  (puts drgn/ and perf/ on the path)

hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("same")
