// Cases for csrc/metal/runtime.h on the Metal runtime of test/metal: runs the named one, or lists
// their names. test/test_metal_runtime.py says how each has to end.
#include <string_view>

#include "check.h"

int main(int count, char** arguments) {
  for (const auto& list :
       {check::cases_of_running(), check::cases_of_faults(), check::cases_of_misuse()}) {
    for (const auto& [name, run] : list) {
      if (count < 2) {
        std::puts(name);
      } else if (std::string_view(arguments[1]) == name) {
        run();
        return 0;
      }
    }
  }
  return count < 2 ? 0 : 2;
}
