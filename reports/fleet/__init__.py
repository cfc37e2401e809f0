# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is asked of the hosts of a lake, and how it is said: on a terminal, as a page, by Spark."""
