"""The generated pages of the site: which there are, and what each should be now."""

from docs_tools import accuracy, reference
from docs_tools.commands import SOURCE


def pages(workplace):
    """path → content."""
    return {
        SOURCE / "docs/reference/commands.md": reference.commands_page(workplace),
        SOURCE / "docs/reference/keys.md": reference.keys_page(workplace),
        SOURCE / "docs/reference/exit-codes.md": reference.exit_codes_page(),
        SOURCE / "docs/reference/formats.md": reference.formats_page(),
        SOURCE / "docs/accuracy.md": accuracy.page(),
    }
