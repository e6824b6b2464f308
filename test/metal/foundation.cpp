#include "foundation.h"

#include <utility>

#include "settings.h"

namespace simulated_metal {
namespace {

// What NS::OperatingSystemVersion is.
struct Version {
  long major, minor, patch;
};

constexpr unsigned long kUtf8 = 4;

class ProcessInfo final : public Object {
 public:
  ProcessInfo() : Object(Kinds::instance().at("NSProcessInfo")) {}
};

}  // namespace

String::String(std::string text)
    : Object(Kinds::instance().at("NSString")), text(std::move(text)) {}

Error::Error(std::string text) : Object(Kinds::instance().at("NSError")), text(std::move(text)) {}

void define_foundation(Kinds& kinds) {
  Kind& string = kinds.define("NSString");
  string.add_to_class("stringWithCString:encoding:",
                      [](Kind*, SEL, const char* text, unsigned long encoding) {
                        if (text == nullptr || encoding != kUtf8)
                          misuse("a string of no text, or not of UTF-8");
                        return autoreleased(new String(text));
                      });
  string.add("UTF8String", [](String* self, SEL) { return self->text.c_str(); });

  Kind& error = kinds.define("NSError");
  error.add("localizedDescription",
            [](Error* self, SEL) { return autoreleased(new String(self->text)); });

  Kind& info = kinds.define("NSProcessInfo");
  info.add_to_class("processInfo", [](Kind*, SEL) {
    static auto& its = *new ProcessInfo;
    return &its;
  });
  info.add("operatingSystemVersion", [](ProcessInfo*, SEL) {
    const auto& version = settings().version;
    return Version{version[0], version[1], version[2]};
  });
}

}  // namespace simulated_metal
