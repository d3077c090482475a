"""The generated pages of the site: which there are, and what each should be now."""

from docs_tools import accuracy, checklist, reference
from docs_tools.commands import SOURCE
from docs_tools.lints import architecture


def pages(workplace):
    """path → content, of those in the tree: a change of the program shows there."""
    map_page = SOURCE / architecture.PAGE
    return {
        map_page: architecture.refreshed(SOURCE, map_page.read_text()),
        SOURCE / "docs/reference/keys.md": reference.keys_page(workplace),
        SOURCE / "docs/reference/exit-codes.md": reference.exit_codes_page(),
        SOURCE / "docs/reference/formats.md": reference.formats_page(),
        SOURCE / "docs/accuracy.md": accuracy.page(),
    }


def site_pages(workplace):
    """Place below docs/ → content, of those that only the site has (site_hook.py)."""
    return {
        "reference/commands.md": reference.commands_page(workplace),
        "checklist.md": checklist.page(),
    }
