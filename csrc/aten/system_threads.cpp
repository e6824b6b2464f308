#include "aten/system_threads.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace hologram::aten {

std::set<SystemThread> threads_named(std::string_view prefix) {
  std::set<SystemThread> threads;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(task.path() / "stat");
    std::string stat, state, field;
    if (!std::getline(file, stat)) continue;  // it has just ended
    // proc(5): the id, the name in parentheses, and further fields from the third on.
    const size_t begin = stat.find('(') + 1, end = stat.rfind(')');
    SystemThread its{stat.substr(begin, end - begin), 0, std::stoi(stat), false};
    if (!its.name.starts_with(prefix)) continue;
    std::istringstream fields(stat.substr(end + 1));
    fields >> state;
    for (int number = 4; number < 22; ++number) fields >> field;
    fields >> its.started;
    its.is_running = state == "R" || state == "D";
    threads.insert(its);
  }
  return threads;
}

}  // namespace hologram::aten
