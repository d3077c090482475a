#pragma once

#include <string_view>

/// The files of page/, put into the library when it is built.
namespace trellis::analysis {

extern const std::string_view kPageHtml, kPageCss, kPageBase, kPageScript;

}  // namespace trellis::analysis
