#include "runtime/calls/python_stack.h"

#include <dlfcn.h>

namespace trellis::runtime {
namespace {

constexpr std::size_t kDeepest = 64;

/// Functions of Python's C interface: found in the process, since this library is linked without
/// Python.
class Python {
 public:
  static const Python& here() {
    static const Python python;
    return python;
  }
  [[nodiscard]] bool runs() const { return complete_ && is_initialized() != 0; }

 private:
  bool complete_ = true;  ///< first: find() changes it

 public:
  int (*is_initialized)() = find("Py_IsInitialized");
  int (*lock)() = find("PyGILState_Ensure");
  void (*unlock)(int) = find("PyGILState_Release");
  void* (*frame)() = find("PyEval_GetFrame");        // borrowed
  void* (*caller)(void*) = find("PyFrame_GetBack");  // new, or null
  void* (*code)(void*) = find("PyFrame_GetCode");    // new
  int (*line)(void*) = find("PyFrame_GetLineNumber");
  void* (*attribute)(void*, const char*) = find("PyObject_GetAttrString");  // new, or null
  const char* (*text)(void*) = find("PyUnicode_AsUTF8");
  void (*clear_error)() = find("PyErr_Clear");
  void (*retain)(void*) = find("Py_IncRef");
  void (*release)(void*) = find("Py_DecRef");  // also of null

 private:
  struct Symbol {
    void* address;
    template <typename Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };
  Symbol find(const char* name) {
    void* const address = dlsym(RTLD_DEFAULT, name);
    complete_ = complete_ && address != nullptr;
    return {address};
  }
};

std::string attribute_text(const Python& python, void* object, const char* name) {
  void* const value = python.attribute(object, name);
  const char* const text = value == nullptr ? nullptr : python.text(value);
  std::string result = text == nullptr ? "?" : text;
  if (text == nullptr) python.clear_error();
  python.release(value);
  return result;
}

}  // namespace

std::vector<SourceFrame> python_stack(std::size_t most, bool (*skipped)(const SourceFrame&)) {
  std::vector<SourceFrame> frames;
  const Python& python = Python::here();
  if (!python.runs()) return frames;
  const int state = python.lock();
  void* frame = python.frame();
  python.retain(frame);
  std::size_t end = kDeepest;
  while (frame != nullptr && frames.size() < end) {
    void* const code = python.code(frame);
    frames.push_back({attribute_text(python, code, "co_name"),
                      attribute_text(python, code, "co_filename"), python.line(frame)});
    python.release(code);
    if (end == kDeepest && !skipped(frames.back())) end = frames.size() - 1 + most;
    void* const caller = python.caller(frame);
    python.release(frame);
    frame = caller;
  }
  python.release(frame);
  python.unlock(state);
  return frames;
}

}  // namespace trellis::runtime
