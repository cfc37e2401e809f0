# SPDX-License-Identifier: LGPL-2.1-or-later
"""What installs the libraries of findings and reports; a distribution names its package here."""

FULL_INSTALL = "pip install 'mmscope[report]'"
