// Objective-C's objects and messages, as far as the Metal runtime of this folder needs them.
//
// Stricter than Apple's: what ends the process here (misuse()) may pass there.
#pragma once

#include <objc/runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

namespace simulated_metal {

// Ends the process.
[[noreturn]] void misuse(const std::string& what);

class Kind;

// What a pointer of metal-cpp's points to. It begins with one reference; after the last one it is
// kept for some time, so that a message to it is found.
class Object {
 public:
  explicit Object(Kind& kind);
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  const Kind& kind() const noexcept { return *kind_; }
  const char* kind_name() const noexcept;
  bool is_dead() const noexcept { return references_.load() == 0; }
  int64_t references() const noexcept { return references_.load(); }

  void retain(const char* by = "retain");
  void release();
  virtual bool is_class() const noexcept { return false; }

 protected:
  // After a reference has gone that was not the last one.
  virtual void released() {}
  // The last reference has gone: gives up what the object holds.
  virtual void deallocate() {}

 private:
  Kind* const kind_;
  std::atomic<int64_t> references_{1};
};

// A reference.
template <class T>
class Ref {
 public:
  Ref() = default;
  // Takes over a reference.
  explicit Ref(T* object) noexcept : object_(object) {}
  static Ref retained(T* object) {
    if (object != nullptr) object->retain();
    return Ref(object);
  }
  Ref(const Ref& other) : Ref(retained(other.object_)) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ != nullptr) object_->release();
  }
  T* get() const noexcept { return object_; }
  T* operator->() const noexcept { return object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }
  T* give() noexcept { return std::exchange(object_, nullptr); }

 private:
  T* object_ = nullptr;
};

// What is sent to an object, and the function that does it.
struct Method {
  const void* code;
  mutable std::atomic<uint64_t> calls{0};
};

// A class of objects; itself what messages as +alloc are sent to.
class Kind final : public Object {
 public:
  explicit Kind(const char* name) : Object(*this), name_(name) {}
  const char* name() const noexcept { return name_; }
  bool is_class() const noexcept override { return true; }

  // `code`, a lambda without a capture, is what the compiler calls for the message: of (object,
  // selector, arguments).
  template <class F>
  void add(const char* selector, F code) {
    add(instances_, selector, +code);
  }
  // Of the class itself.
  template <class F>
  void add_to_class(const char* selector, F code) {
    add(own_, selector, +code);
  }
  // Null if there is none.
  const Method* find(SEL selector, bool of_class) const;

  std::atomic<int64_t> living{0};

 private:
  using Methods = std::unordered_map<SEL, std::unique_ptr<Method>>;
  template <class R, class Self, class... A>
  static void add(Methods& methods, const char* selector, R (*code)(Self*, SEL, A...)) {
    add(methods, selector, reinterpret_cast<const void*>(code), sizeof...(A));
  }
  static void add(Methods& methods, const char* selector, const void* code, size_t arguments);

  const char* const name_;
  Methods instances_, own_;
};

// All classes; each file of this folder defines its own.
class Kinds {
 public:
  static Kinds& instance();
  Kind& define(const char* name);
  Kind* find(const std::string& name);
  Kind& at(const char* name);

 private:
  Kinds();
  std::map<std::string, std::unique_ptr<Kind>> all_;
};

void define_foundation(Kinds& kinds);
void define_device(Kinds& kinds);
void define_library(Kinds& kinds);
void define_commands(Kinds& kinds);
void define_events(Kinds& kinds);

// The same pointer for the same text.
SEL selector_of(const char* name);
inline const char* name_of(SEL selector) {
  return reinterpret_cast<const char*>(selector);
}

// Leaves a reference to the pool of the calling thread, and returns the object.
template <class T>
T* autoreleased(T* object);
void autorelease(Object* object);
template <class T>
T* autoreleased(T* object) {
  autorelease(object);
  return object;
}

}  // namespace simulated_metal
