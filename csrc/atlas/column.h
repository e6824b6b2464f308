// An array that grows, for recording: room is made once, then elements are appended unchecked.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

namespace hologram {

template <class T>
class Column {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  Column() = default;
  Column(const Column& other) { *this = other; }
  Column(Column&& other) noexcept { swap(other); }
  Column& operator=(const Column& other) {
    if (this == &other) return *this;
    clear();
    reserve(other.size());
    size_ = other.size_;
    if (size_ != 0) std::memcpy(data_.get(), other.data_.get(), size_ * sizeof(T));
    return *this;
  }
  Column& operator=(Column&& other) noexcept {
    swap(other);
    return *this;
  }
  void swap(Column& other) noexcept {
    data_.swap(other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  // Room for so many elements in all.
  void reserve(size_t capacity) {
    if (capacity > capacity_) grow(capacity);
  }
  // Needs room.
  void push(const T& element) noexcept {
    assert(size_ < capacity_);
    data_[size_++] = element;
  }
  T& push_unwritten() noexcept {
    assert(size_ < capacity_);
    return data_[size_++];
  }
  void push_back(const T& element) {
    if (size_ == capacity_) [[unlikely]]
      grow(2 * capacity_ + 16);
    push(element);
  }
  void clear() noexcept { size_ = 0; }
  void truncate(size_t size) noexcept { size_ = size; }  // to at most what there is

  size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  T& operator[](size_t i) noexcept { return data_[i]; }
  const T& operator[](size_t i) const noexcept { return data_[i]; }
  T* data() noexcept { return data_.get(); }
  const T* data() const noexcept { return data_.get(); }
  T* begin() noexcept { return data_.get(); }
  T* end() noexcept { return data_.get() + size_; }
  const T* begin() const noexcept { return data_.get(); }
  const T* end() const noexcept { return data_.get() + size_; }
  const T& back() const noexcept { return data_[size_ - 1]; }

 private:
  [[gnu::noinline]] void grow(size_t capacity) {
    auto data = std::make_unique_for_overwrite<T[]>(capacity);
    if (size_ != 0) std::memcpy(data.get(), data_.get(), size_ * sizeof(T));
    data_ = std::move(data);
    capacity_ = capacity;
  }

  std::unique_ptr<T[]> data_;
  size_t size_ = 0, capacity_ = 0;
};

}  // namespace hologram
