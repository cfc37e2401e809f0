# SPDX-License-Identifier: LGPL-2.1-or-later
"""One work done by several processes, with the result that one of them would have."""
