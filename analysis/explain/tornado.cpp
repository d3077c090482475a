#include <algorithm>

#include <fmt/format.h>

#include "analysis/explain/explanation.h"
#include "base/escape.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

constexpr double kLeft = 330, kWidth = 560, kTop = 52, kRow = 24;

}  // namespace

std::string tornado_svg(const Explanation& e) {
  const std::int64_t step = e.sensitivity.step_ps;
  std::vector<const Sensitivity*> bars;
  std::int64_t least = step, most = step;
  for (const Sensitivity& each : e.sensitivity.constants) {
    if (each.swing_ps(step) == 0 || bars.size() == e.most_constants) continue;
    bars.push_back(&each);
    for (const EndOfRange* end : {&each.least, &each.most}) {
      least = std::min(least, end->step_ps.value_or(step));
      most = std::max(most, end->step_ps.value_or(step));
    }
  }
  const auto span = static_cast<double>(std::max<std::int64_t>(1, most - least));
  const auto x = [&](std::int64_t ps) {
    return kLeft + kWidth * static_cast<double>(ps - least) / span;
  };
  const double bottom = kTop + kRow * static_cast<double>(bars.size());
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n<text x=\"12\" y=\"22\" font-size=\"13\">{2}: the step with each constant "
      "at the ends of its range; as it is {3}</text>\n",
      kLeft + kWidth + 110, bottom + 40, xml_text(e.name), milliseconds_text(step));
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const sim::Parameter& parameter = bars[i]->constant.parameter;
    const double y = kTop + kRow * static_cast<double>(i);
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLeft - 8, y + 14,
                       xml_text(parameter.key));
    for (const auto& [end, color] :
         {std::pair(&bars[i]->least, "#2f6fb5"), std::pair(&bars[i]->most, "#c9543f")}) {
      if (!end->step_ps || *end->step_ps == step) continue;
      const double from = x(std::min(step, *end->step_ps)), to = x(std::max(step, *end->step_ps));
      svg += fmt::format(
          "<g><title>{} = {}: {}</title><rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" "
          "height=\"{}\" fill=\"{}\" fill-opacity=\"0.8\"/></g>\n",
          xml_text(parameter.key), xml_text(end->value), milliseconds_text(*end->step_ps), from,
          y + 3, std::max(1.0, to - from), kRow - 6, color);
    }
  }
  svg += fmt::format("<path d=\"M{0:.1f} {1}V{2}\" stroke=\"#333333\"/>\n", x(step), kTop - 6,
                     bottom + 4);
  for (const std::int64_t at : {least, most})
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x(at),
                       bottom + 22, milliseconds_text(at));
  return svg + "</svg>\n";
}

}  // namespace trellis::analysis
