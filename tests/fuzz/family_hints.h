#pragma once

#include "tests/fuzz/chooser.h"

/// Hints for the arguments of a family's operators; each draws one call's.
namespace trellis::fuzz::hints {

Hints advanced(Chooser& choose);
Hints arithmetic(Chooser& choose);
Hints attending(Chooser& choose);
Hints channels(Chooser& choose);
Hints classifying(Chooser& choose);
Hints convolving(Chooser& choose);
Hints counting(Chooser& choose);
Hints division(Chooser& choose);
Hints drawing(Chooser& choose);
Hints drawing_integers(Chooser& choose);
Hints embedding(Chooser& choose);
Hints expansion(Chooser& choose);
Hints floating(Chooser& choose);
Hints gathering(Chooser& choose);
Hints making(Chooser& choose);
Hints matmuls(Chooser& choose);
Hints normalising(Chooser& choose);
Hints nothing(Chooser& choose);
Hints padding(Chooser& choose);
Hints permutation(Chooser& choose);
Hints pointwise(Chooser& choose);
Hints pooling(Chooser& choose);
Hints products(Chooser& choose);
Hints repeating(Chooser& choose);
Hints reshaping(Chooser& choose);
Hints resizing(Chooser& choose);
Hints sampling(Chooser& choose);
Hints searching(Chooser& choose);
Hints selecting(Chooser& choose);
Hints splitting(Chooser& choose);
Hints storages(Chooser& choose);
Hints taking(Chooser& choose);
Hints tensor_division(Chooser& choose);
Hints vectors(Chooser& choose);
Hints window(Chooser& choose);

}  // namespace trellis::fuzz::hints
