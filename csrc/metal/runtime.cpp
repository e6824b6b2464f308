// The functions of runtime.h, on Apple's metal-cpp. No other file includes its headers.
//
// metal-cpp is messages to Objective-C objects: one that a function named `new`, `alloc`, `Create`
// or `copy` has made is the caller's, any other one belongs to the pool around the call.
#include "metal/runtime.h"

#define METALCPP_SYMBOL_VISIBILITY_HIDDEN
#define NS_PRIVATE_IMPLEMENTATION
#define MTL_PRIVATE_IMPLEMENTATION
#include <mach/mach.h>

#include <Foundation/Foundation.hpp>
#include <Metal/Metal.hpp>
#include <memory>
#include <tuple>

#include "atlas/error.h"

extern "C" {
// Of Objective-C's run time, what @autoreleasepool is compiled to.
void* objc_autoreleasePoolPush(void);
void objc_autoreleasePoolPop(void* pool);
}

namespace hologram::metal {
namespace {

constexpr NS::UInteger kSimdWidth = 32;  // what kernels are written for

class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { objc_autoreleasePoolPop(pool_); }

 private:
  void* const pool_ = objc_autoreleasePoolPush();
};

NS::Object* raw(const Object& object) {
  return static_cast<NS::Object*>(object.get());
}
MTL::Buffer* raw(const Buffer& buffer) {
  return static_cast<MTL::Buffer*>(buffer.get());
}
MTL::ComputePipelineState* raw(const Pipeline& pipeline) {
  return static_cast<MTL::ComputePipelineState*>(pipeline.get());
}
MTL::Library* raw(const Library& library) {
  return static_cast<MTL::Library*>(library.get());
}
MTL::SharedEvent* raw(const Event& event) {
  return static_cast<MTL::SharedEvent*>(event.get());
}
MTL::CommandQueue* raw(const CommandQueue& queue) {
  return static_cast<MTL::CommandQueue*>(queue.get());
}
MTL::Device* raw(const Device& device) {
  return static_cast<MTL::Device*>(device.get());
}
MTL::CommandBuffer* command_buffer(const Object& object) {
  return static_cast<MTL::CommandBuffer*>(object.get());
}
MTL::ComputeCommandEncoder* encoder(const Object& object) {
  return static_cast<MTL::ComputeCommandEncoder*>(object.get());
}

// Of the pool's.
NS::String* string_of(const std::string& text) {
  NS::String* const string = NS::String::string(text.c_str(), NS::UTF8StringEncoding);
  if (string == nullptr) throw Error("Metal: a text that is not UTF-8");
  return string;
}

std::string text_of(const NS::String* string) {
  const char* const text = string != nullptr ? string->utf8String() : nullptr;
  return text != nullptr ? text : "";
}

std::string text_of(const NS::Error* error) {
  std::string text = error != nullptr ? text_of(error->localizedDescription()) : "";
  while (text.ends_with('\n')) text.pop_back();  // of a compiler's
  return text.empty() ? "it does not say why" : text;
}

// (major, minor), of macOS.
std::tuple<long, long> system_version() {
  const NS::OperatingSystemVersion its = NS::ProcessInfo::processInfo()->operatingSystemVersion();
  return {its.majorVersion, its.minorVersion};
}

bool has_math_modes() {
  return system_version() >= std::tuple(15, 0);
}

}  // namespace

Object::Object(const Object& other) noexcept : object_(other.object_) {
  if (object_ != nullptr) raw(*this)->retain();
}

Object::~Object() {
  if (object_ == nullptr) return;
  const Pool pool;  // for what the object leaves to one when it goes
  raw(*this)->release();
}

unsigned Pipeline::most_threads() const noexcept {
  return static_cast<unsigned>(raw(*this)->maxTotalThreadsPerThreadgroup());
}

Pipeline Library::pipeline(const std::string& kernel) const {
  const Pool pool;
  const Object function(raw(*this)->newFunction(string_of(kernel)));
  if (!function) return Pipeline();
  NS::Error* error = nullptr;
  Pipeline pipeline(raw(*this)->device()->newComputePipelineState(
      static_cast<MTL::Function*>(function.get()), &error));
  if (!pipeline) throw Error("Metal: no pipeline of kernel " + kernel + ": " + text_of(error));
  if (const NS::UInteger width = raw(pipeline)->threadExecutionWidth(); width != kSimdWidth) {
    throw Error("Metal: simdgroups of kernel " + kernel + " have " + std::to_string(width) +
                " threads; kernels are written for " + std::to_string(kSimdWidth));
  }
  return pipeline;
}

uint64_t Event::value() const noexcept {
  return raw(*this)->signaledValue();
}

void Event::set_value(uint64_t value) noexcept {
  raw(*this)->setSignaledValue(value);
}

bool Event::wait(uint64_t value, uint64_t milliseconds) const noexcept {
  const Pool pool;
  return raw(*this)->waitUntilSignaledValue(value, milliseconds);
}

Commands& Commands::operator=(Commands&& other) noexcept {
  if (this == &other) return *this;
  end_encoding();
  buffer_ = std::move(other.buffer_);
  encoder_ = std::move(other.encoder_);
  return *this;
}

Commands::~Commands() {
  end_encoding();
}

void Commands::dispatch(const Pipeline& pipeline, std::span<const Place> places,
                        std::span<const std::byte> bytes, uint32_t blocks, uint32_t threads) {
  const Pool pool;
  if (!encoder_) {
    MTL::ComputeCommandEncoder* const its =
        command_buffer(buffer_)->computeCommandEncoder(MTL::DispatchTypeSerial);
    if (its == nullptr) throw Error("Metal: no encoder of kernels");
    encoder_ = Object(its->retain());
  }
  MTL::ComputeCommandEncoder* const its = encoder(encoder_);
  its->setComputePipelineState(raw(pipeline));
  NS::UInteger index = 0;
  for (const Place& place : places) its->setBuffer(raw(*place.buffer), place.offset, index++);
  if (!bytes.empty()) its->setBytes(bytes.data(), bytes.size(), index);
  its->dispatchThreadgroups(MTL::Size(blocks, 1, 1), MTL::Size(threads, 1, 1));
}

void Commands::wait_for(const Event& event, uint64_t value) {
  const Pool pool;
  end_encoding();
  command_buffer(buffer_)->encodeWait(raw(event), value);
}

void Commands::signal(const Event& event, uint64_t value) {
  const Pool pool;
  end_encoding();
  command_buffer(buffer_)->encodeSignalEvent(raw(event), value);
}

void Commands::commit(std::function<void(const Finished&)> finished) {
  const Pool pool;
  // The block is copied, and called once.
  auto* const call = new std::function(std::move(finished));
  end_encoding();
  const Object buffer = std::move(buffer_);
  command_buffer(buffer)->addCompletedHandler(^(MTL::CommandBuffer* done) {
    const Pool its_own;
    const std::unique_ptr<const std::function<void(const Finished&)>> once(call);
    Finished how;
    if (done->status() == MTL::CommandBufferStatusError) how.error = text_of(done->error());
    how.begin = done->GPUStartTime();
    how.end = done->GPUEndTime();
    (*once)(how);
  });
  command_buffer(buffer)->commit();
}

// Metal ends the process where an encoder that was not ended goes.
void Commands::end_encoding() noexcept {
  if (!encoder_) return;
  const Pool pool;
  encoder(encoder_)->endEncoding();
  encoder_ = Object();
}

Commands CommandQueue::commands() const {
  const Pool pool;
  MTL::CommandBuffer* const buffer = raw(*this)->commandBuffer();
  if (buffer == nullptr) throw Error("Metal: no command buffer");
  return Commands(buffer->retain());
}

Device Device::system_default() {
  const Pool pool;
  if (const auto [major, minor] = system_version(); major < 14) {
    throw Error("Metal: macOS 14 or newer is needed, this is " + std::to_string(major) + "." +
                std::to_string(minor));
  }
  Device device(MTL::CreateSystemDefaultDevice());
  if (!device) throw Error("Metal: there is no device");
  // Operations of simdgroups that kernels use are those of M1 or later.
  if (!raw(device)->hasUnifiedMemory() || !raw(device)->supportsFamily(MTL::GPUFamilyApple7)) {
    throw Error("Metal: a GPU of Apple's is needed, M1 or later; this is " + device.info().name);
  }
  return device;
}

DeviceInfo Device::info() const {
  const Pool pool;
  return {text_of(raw(*this)->name()), raw(*this)->recommendedMaxWorkingSetSize(),
          raw(*this)->maxBufferLength(), raw(*this)->maxThreadgroupMemoryLength()};
}

size_t Device::allocated_bytes() const noexcept {
  return raw(*this)->currentAllocatedSize();
}

Buffer Device::wrap(void* memory, size_t bytes, void (*give_back)(void*, size_t)) const {
  const Pool pool;
  if (bytes > raw(*this)->maxBufferLength()) return Buffer();
  constexpr MTL::ResourceOptions kOptions =
      MTL::ResourceStorageModeShared | MTL::ResourceHazardTrackingModeDefault;
  if (give_back == nullptr) return Buffer(raw(*this)->newBuffer(memory, bytes, kOptions, nullptr));
  return Buffer(raw(*this)->newBuffer(memory, bytes, kOptions, ^(void* its, NS::UInteger length) {
    give_back(its, length);
  }));
}

size_t Device::page_size() noexcept {
  return vm_page_size;
}

Library Device::compile(const std::string& text) const {
  const Pool pool;
  const Object owned(MTL::CompileOptions::alloc()->init());
  auto* const options = static_cast<MTL::CompileOptions*>(owned.get());
  options->setLanguageVersion(MTL::LanguageVersion3_1);
  // Without these NaN and infinity may be anything.
  if (has_math_modes()) {
    options->setMathMode(MTL::MathModeSafe);
    options->setMathFloatingPointFunctions(MTL::MathFloatingPointFunctionsPrecise);
  } else {
    options->setFastMathEnabled(false);
  }
  NS::Error* error = nullptr;
  Library library(raw(*this)->newLibrary(string_of(text), options, &error));
  if (!library) throw Error("Metal: kernels do not compile: " + text_of(error));
  return library;
}

CommandQueue Device::make_queue() const {
  const Pool pool;
  CommandQueue queue(raw(*this)->newCommandQueue());
  if (!queue) throw Error("Metal: no command queue");
  return queue;
}

Event Device::make_event() const {
  const Pool pool;
  Event event(raw(*this)->newSharedEvent());
  if (!event) throw Error("Metal: no event");
  return event;
}

}  // namespace hologram::metal
