// What of the CUDA backend needs neither a driver nor a GPU.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "atlas/error.h"
#include "check.h"
#include "cuda/driver.h"
#include "cuda/image.h"
#include "cuda/kernels.h"

using namespace hologram;

namespace {

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kernels-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  void add(const std::string& name) const { std::ofstream(path_ / name) << "kernels"; }
  std::string chosen(int major, int minor) const {
    return std::filesystem::path(cuda::kernel_file(path_, "cold", major, minor)).filename();
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST(cuda_kernels_are_those_of_the_nearest_older_gpu) {
  const Folder folder;
  for (const char* const name :
       {"cold.sm_75.cubin", "cold.sm_80.cubin", "cold.sm_86.cubin", "cold.sm_90.cubin",
        "moves.sm_100.cubin", "cold.compute_80.ptx", "cold.compute_90.ptx", "made_from.json",
        "cold.sm_x.cubin", "cold.sm_.cubin"}) {
    folder.add(name);
  }
  CHECK_EQ(folder.chosen(7, 5), std::string("cold.sm_75.cubin"));
  CHECK_EQ(folder.chosen(8, 0), std::string("cold.sm_80.cubin"));
  CHECK_EQ(folder.chosen(8, 9), std::string("cold.sm_86.cubin"));
  CHECK_EQ(folder.chosen(9, 0), std::string("cold.sm_90.cubin"));
  // Of another major number only what the driver compiles.
  CHECK_EQ(folder.chosen(10, 0), std::string("cold.compute_90.ptx"));
  CHECK_EQ(folder.chosen(12, 1), std::string("cold.compute_90.ptx"));
  CHECK_EQ(folder.chosen(7, 0), std::string());
}

TEST(cuda_kernels_lie_where_the_environment_says) {
  CHECK_EQ(std::filesystem::path(cuda::kernel_folder()).filename(), std::string("kernels"));
  ::setenv("HOLOGRAM_CUDA_KERNELS", "/somewhere", 1);
  CHECK_EQ(cuda::kernel_folder(), std::string("/somewhere"));
  ::unsetenv("HOLOGRAM_CUDA_KERNELS");
}

TEST(cuda_kernels_of_a_folder_that_is_not_there) {
  const Folder folder;
  CHECK_EQ(cuda::kernel_file(folder.path() / "none", "cold", 9, 0), std::string());
}

// What a linker made of this program is an ELF file as the kernels' are.
TEST(cuda_kernels_are_looked_for_by_the_names_in_their_file) {
  const cuda::Image own("/proc/self/exe");
  CHECK(own.may_have("main"));
  CHECK(!own.may_have("mai"));
  CHECK(!own.may_have(""));
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  CHECK(cuda::symbols_of(whole).has_value());
  // Cut short anywhere it is no such file, whatever its sections say.
  for (size_t i = 1; i < 40; ++i) {
    const std::string cut = whole.substr(0, whole.size() * i / 40);
    CHECK(!cuda::symbols_of(std::string(cut)).has_value());
  }
}

TEST(cuda_kernels_that_are_text_end_with_a_zero) {
  const Folder folder;
  for (const size_t size : {size_t{0}, size_t{5}, size_t{4096}, size_t{8192}}) {
    const std::string path = folder.path() / "cold.compute_90.ptx";
    std::ofstream(path) << std::string(size, 'x');
    const cuda::Image image(path);
    CHECK_EQ(std::string(image.data()).size(), size);
    CHECK(image.may_have("anything"));
  }
  std::ofstream(folder.path() / "cold.sm_90.cubin") << "\x7f"
                                                       "ELF and no more";
  CHECK_THROWS(cuda::Image(folder.path() / "cold.sm_90.cubin"), Error, "are damaged");
  CHECK_THROWS(cuda::Image(folder.path() / "nothing"), Error, "cannot be read");
}
