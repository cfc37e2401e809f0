# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tables mean: one TOML file a finding, and what evaluates them."""
