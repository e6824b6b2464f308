// The registry that torch's CUDA allocator asks for memory before it asks the driver, for tests
// without a torch that has CUDA: the library of that name.
#include <c10/util/Registry.h>

#include <memory>
#include <string>

namespace c10 {

class FreeMemoryCallback {
 public:
  virtual ~FreeMemoryCallback() = default;
  virtual bool Execute() = 0;
};
C10_DECLARE_REGISTRY(FreeCudaMemoryCallbacksRegistry, FreeMemoryCallback);
C10_DEFINE_REGISTRY(FreeCudaMemoryCallbacksRegistry, FreeMemoryCallback)

}  // namespace c10

// As the allocator does it; how many there are.
extern "C" __attribute__((visibility("default"))) int ask_for_memory() {
  auto& registry = *c10::FreeCudaMemoryCallbacksRegistry();
  int asked = 0;
  for (const std::string& name : registry.Keys()) {
    registry.Create(name)->Execute();
    ++asked;
  }
  return asked;
}
