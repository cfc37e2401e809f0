# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pictures: rows of tables as shapes, which ``templates/picture_*.html`` draw."""
