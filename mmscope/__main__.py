# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m mmscope``: the command, where it is not on the path."""

import sys

from mmscope.reports.commands.command import main

sys.exit(main())
