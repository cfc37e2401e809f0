# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files and file systems: who has the page cache, the dentries and the inodes."""
