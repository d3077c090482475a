#include "trainer/files/checkpoint/containers/pickle_classes.h"

#include <set>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/dtype.h"

namespace trellis::checkpoint {
namespace {

/// Storage classes, memory formats and the like are names of torch that represent themselves.
const std::set<std::string>& plain_classes() {
  static const std::set<std::string> classes = {
      "_codecs.encode",
      "argparse.Namespace",
      "builtins.bool",
      "builtins.bytearray",
      "builtins.bytes",
      "builtins.complex",
      "builtins.dict",
      "builtins.float",
      "builtins.frozenset",
      "builtins.int",
      "builtins.list",
      "builtins.object",
      "builtins.range",
      "builtins.set",
      "builtins.slice",
      "builtins.str",
      "builtins.tuple",
      "collections.Counter",
      "collections.OrderedDict",
      "collections.defaultdict",
      "copyreg._reconstructor",
      "datetime.timedelta",
      "numpy._core.multiarray._reconstruct",
      "numpy._core.multiarray.scalar",
      "numpy.core.multiarray._reconstruct",
      "numpy.core.multiarray.scalar",
      "numpy.dtype",
      "numpy.ndarray",
      "pathlib.Path",
      "pathlib.PosixPath",
      "pathlib.PurePosixPath",
      "torch.BFloat16Storage",
      "torch.BoolStorage",
      "torch.ByteStorage",
      "torch.CharStorage",
      "torch.ComplexDoubleStorage",
      "torch.ComplexFloatStorage",
      "torch.DoubleStorage",
      "torch.FloatStorage",
      "torch.HalfStorage",
      "torch.IntStorage",
      "torch.LongStorage",
      "torch.ShortStorage",
      "torch.Size",
      "torch.Tensor",
      "torch._tensor._rebuild_from_type_v2",
      "torch._utils._rebuild_device_tensor_from_cpu_tensor",
      "torch._utils._rebuild_parameter",
      "torch._utils._rebuild_parameter_with_state",
      "torch._utils._rebuild_tensor",
      "torch._utils._rebuild_tensor_v2",
      "torch._utils._rebuild_tensor_v3",
      "torch.channels_last",
      "torch.contiguous_format",
      "torch.device",
      "torch.nn.parameter.Parameter",
      "torch.preserve_format",
      "torch.serialization._get_layout",
      "torch.storage.TypedStorage",
      "torch.storage.UntypedStorage",
      "torch.strided",
      "types.SimpleNamespace",
  };
  return classes;
}

}  // namespace

bool is_plain_class(const std::string& name) {
  if (name.starts_with("torch.") && dtype_named(name)) return true;
  return plain_classes().contains(name);
}

std::string python3_name(const std::string& module, const std::string& name) {
  if (module == "__builtin__") {
    if (name == "unicode") return "builtins.str";
    if (name == "long") return "builtins.int";
    if (name == "xrange") return "builtins.range";
    return "builtins." + name;
  }
  if (module == "copy_reg") return "copyreg." + name;
  return module + "." + name;
}

PickledName protocol2_name(const std::string& class_name) {
  const std::size_t dot = class_name.rfind('.');
  if (dot == std::string::npos || dot == 0 || class_name.find('\n') != std::string::npos)
    throw Error(ExitCode::kInternal,
                "a pickle cannot name '" + terminal_line(class_name) + "'; expected module.name");
  PickledName result{class_name.substr(0, dot), class_name.substr(dot + 1)};
  if (result.module == "builtins") result.module = "__builtin__";
  if (result.module == "copyreg") result.module = "copy_reg";
  if (result.module == "__builtin__" && result.name == "range") result.name = "xrange";
  return result;
}

}  // namespace trellis::checkpoint
