#include "objc.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <set>

namespace simulated_metal {

void misuse(const std::string& what) {
  std::fprintf(stderr, "simulated Metal: %s\n", what.c_str());
  std::abort();
}

namespace {

// Objects whose last reference has gone, the latest ones.
class Dead {
 public:
  static Dead& instance() {
    static auto& its = *new Dead;
    return its;
  }
  void add(Object* object) {
    std::unique_ptr<Object> oldest;
    const std::lock_guard guard(mutex_);
    all_.emplace_back(object);
    if (all_.size() <= kMost) return;
    oldest = std::move(all_.front());
    all_.pop_front();
  }

 private:
  static constexpr size_t kMost = 100'000;
  std::mutex mutex_;
  std::deque<std::unique_ptr<Object>> all_;
};

}  // namespace

Object::Object(Kind& kind) : kind_(&kind) {
  // A class is its own kind, and not yet there.
  if (static_cast<Object*>(&kind) != this) ++kind.living;
}

const char* Object::kind_name() const noexcept {
  return kind_->name();
}

void Object::retain(const char* by) {
  if (references_.fetch_add(1) == 0) misuse(std::string(by) + " of a dead " + kind_name());
}

void Object::release() {
  const int64_t before = references_.fetch_sub(1);
  if (before <= 0) misuse(std::string("release of a dead ") + kind_name());
  if (before > 1) return released();
  deallocate();
  --kind_->living;
  Dead::instance().add(this);
}

void Kind::add(Methods& methods, const char* selector, const void* code, size_t arguments) {
  const std::string name = selector;
  if (static_cast<size_t>(std::count(name.begin(), name.end(), ':')) != arguments) {
    misuse(name + " is defined with another number of arguments");
  }
  methods.emplace(selector_of(selector), new Method{code});
}

const Method* Kind::find(SEL selector, bool of_class) const {
  const Methods& methods = of_class ? own_ : instances_;
  const auto found = methods.find(selector);
  return found != methods.end() ? found->second.get() : nullptr;
}

Kinds& Kinds::instance() {
  static auto& its = *new Kinds;
  return its;
}

Kinds::Kinds() {
  define_foundation(*this);
  define_device(*this);
  define_library(*this);
  define_commands(*this);
  define_events(*this);
}

Kind& Kinds::define(const char* name) {
  Kind& its = *all_.emplace(name, std::make_unique<Kind>(name)).first->second;
  its.add("retain", [](Object* self, SEL) {
    self->retain();
    return self;
  });
  its.add("release", [](Object* self, SEL) { self->release(); });
  its.add("autorelease", [](Object* self, SEL) { return autoreleased(self); });
  // What metal-cpp asks before messages that an older system does not know; zero is the answer
  // then.
  its.add("respondsToSelector:", [](Object* self, SEL, SEL selector) {
    return self->kind().find(selector, false) != nullptr;
  });
  its.add("methodSignatureForSelector:", [](Object*, SEL, SEL) -> Object* { return nullptr; });
  return its;
}

Kind* Kinds::find(const std::string& name) {
  const auto found = all_.find(name);
  return found != all_.end() ? found->second.get() : nullptr;
}

Kind& Kinds::at(const char* name) {
  Kind* const its = find(name);
  if (its == nullptr) misuse(std::string("there is no class ") + name);
  return *its;
}

SEL selector_of(const char* name) {
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::set<std::string>;
  const std::lock_guard guard(mutex);
  return reinterpret_cast<SEL>(const_cast<char*>(all.emplace(name).first->c_str()));
}

}  // namespace simulated_metal

using simulated_metal::Kinds;
using simulated_metal::misuse;
using simulated_metal::Object;

extern "C" {

Class objc_lookUpClass(const char* name) {
  return reinterpret_cast<Class>(Kinds::instance().find(name));
}

Protocol* objc_getProtocol(const char*) {
  return nullptr;
}

SEL sel_registerName(const char* name) {
  return simulated_metal::selector_of(name);
}

// Called by the functions of messages.cpp: what does it.
const void* simulated_metal_method(Object* self, SEL selector) {
  const std::string name = simulated_metal::name_of(selector);
  // Objective-C answers zero; nothing of the backend relies on that.
  if (self == nullptr) misuse(name + " is sent to nil");
  if (self->is_dead()) misuse(name + " is sent to a dead " + self->kind_name());
  const auto* const method = self->kind().find(selector, self->is_class());
  if (method == nullptr) {
    misuse(std::string(self->is_class() ? "+[" : "-[") + self->kind_name() + " " + name +
           "] is not known");
  }
  method->calls.fetch_add(1, std::memory_order_relaxed);
  return method->code;
}

// For tests: objects of a class that live, and how often they were sent something.
[[gnu::visibility("default")]] int64_t simulated_metal_living(const char* kind) {
  return Kinds::instance().at(kind).living.load();
}
[[gnu::visibility("default")]] uint64_t simulated_metal_calls(const char* kind,
                                                              const char* selector) {
  const auto* const method =
      Kinds::instance().at(kind).find(simulated_metal::selector_of(selector), false);
  return method != nullptr ? method->calls.load() : 0;
}

}  // extern "C"
