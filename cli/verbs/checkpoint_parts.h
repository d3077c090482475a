#pragma once

namespace CLI {
class App;
}

/// Parts of the verb `checkpoint`: each function adds one, as those of cli/verbs/verbs.h do.
namespace trellis::cli {

void add_checkpoint_diff(CLI::App& checkpoint, int& exit_code);
void add_checkpoint_export_adapter(CLI::App& checkpoint, int& exit_code);
void add_checkpoint_export_hf(CLI::App& checkpoint, int& exit_code);
void add_checkpoint_import_hf(CLI::App& checkpoint, int& exit_code);
void add_checkpoint_reshard(CLI::App& checkpoint, int& exit_code);
void add_checkpoint_convert(CLI::App& checkpoint, int& exit_code);

}  // namespace trellis::cli
