"""The lints of tests/lint whose reading of the tree pages are made of."""

import sys

from docs_tools.commands import SOURCE

sys.path.insert(0, str(SOURCE / "tests/lint"))
import architecture  # noqa: E402, F401
import check_checklist  # noqa: E402, F401
