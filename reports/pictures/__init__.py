# SPDX-License-Identifier: LGPL-2.1-or-later
"""One file a picture: the rows of tables as shapes, which ``templates/picture_*.html`` draw."""
