// Runs every test, or those whose name contains the first argument; with a second one, "1/2" say,
// the first, third, fifth of them and so on. Exit status 0 when all passed.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "check.h"

namespace check {

std::string describe_status(int status) {
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return "exit " + std::to_string(WEXITSTATUS(status));
}

static std::string wait_for(pid_t child) {
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return "no child";
  return describe_status(status);
}

std::string run_in_fork(void (*body)()) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a deadlock ends as "signal 14"
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    failures = 0;
    body();
    _exit(failures == 0 ? 0 : 1);
  }
  return wait_for(child);
}

static const char* program = nullptr;  // as it was called

std::string run_again(const char* name, const std::vector<std::string>& environment) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
    // A program for another processor runs in an emulator, and so do those that it starts.
    const char* const emulator = std::getenv("HOLOGRAM_TEST_EMULATOR");
    if (emulator != nullptr) execlp(emulator, emulator, program, name, nullptr);
    execl(program, program, name, nullptr);
    _exit(127);
  }
  return wait_for(child);
}

}  // namespace check

int main(int argc, char** argv) {
  check::program = argv[0];
  const std::string wanted = argc > 1 ? argv[1] : "";
  unsigned part = 1, parts = 1;
  if (argc > 2 && (std::sscanf(argv[2], "%u/%u", &part, &parts) != 2 || part < 1 || part > parts)) {
    std::fprintf(stderr, "no part of the tests: '%s'\n", argv[2]);
    return 1;
  }
  unsigned found = 0;
  int passed = 0, failed = 0;
  for (const check::Test& test : check::tests()) {
    const bool selected = test.subprocess
                              ? wanted == test.name
                              : std::string(test.name).find(wanted) != std::string::npos;
    if (!selected || found++ % parts != part - 1) continue;
    const int before = check::failures;
    try {
      test.body();
    } catch (const std::exception& error) {
      check::fail(test.name, 0, std::string("uncaught exception: ") + error.what());
    }
    if (check::failures == before) {
      ++passed;
    } else {
      ++failed;
      std::fprintf(stderr, "FAILED %s\n", test.name);
    }
  }
  if (found == 0) {
    std::fprintf(stderr, "no test matches '%s'\n", wanted.c_str());
    return 1;
  }
  if (failed != 0) {
    std::printf("%d failed, %d passed\n", failed, passed);
    return 1;
  }
  std::printf("%d passed\n", passed);
  return 0;
}
