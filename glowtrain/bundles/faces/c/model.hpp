/* network.h as a class. C++17; nothing but the object file is linked.
 *
 * Failures are exceptions (Error). With NETWORK_RETURN_CODES defined before this header is included there are none:
 * functions return the codes of network.h, and status() has what came of the beginning.
 */
#ifndef network_HPP
#define network_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <new>
#include <type_traits>
#include <utility>
#ifndef NETWORK_RETURN_CODES
#include <stdexcept>
#endif

#include "network.h"

namespace {{space}} {

#ifdef NETWORK_RETURN_CODES
inline namespace returning { // another class for the linker: other files of the program may have that of exceptions
using Result = std::uint32_t;
inline Result done(std::uint32_t code) { return code; }
#else
using Result = void;

class Error : public std::runtime_error {
 public:
  explicit Error(std::uint32_t code) : std::runtime_error(network_error(code)), code_(code) {}
  std::uint32_t code() const noexcept { return code_; }

 private:
  std::uint32_t code_;
};

inline Result done(std::uint32_t code) {
  if (code != NETWORK_OK) throw Error(code);
}
#endif
inline Result failed(std::uint32_t code) { return done(code); }

// Elements that lie somewhere else: those of a vector or an array, or {pointer, count}.
template <class Element>
class View {
 public:
  View(Element *data, std::size_t size) : data_(data), size_(size) {}
  template <class Container, class = decltype(std::data(std::declval<Container &>()))>
  View(Container &&all) : data_(std::data(all)), size_(std::size(all)) {}

  Element *data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  Element *data_;
  std::size_t size_;
};

// An instance: it owns variables and arena, or uses the caller's, which must outlive it. It can be moved, not copied.
class Model {
 public:
  explicit Model(network_parallel_for parallel_for = nullptr, void *own = nullptr) : owned_(allocate()) {
    network_memory memory{};
    memory.version = NETWORK_VERSION;
    memory.variables = owned_;
    memory.variables_bytes = NETWORK_VARIABLES_BYTES;
    memory.arena = owned_ == nullptr ? nullptr : owned_ + NETWORK_VARIABLES_BYTES;
    memory.arena_bytes = NETWORK_ARENA_BYTES;
    memory.parallel_for = parallel_for;
    memory.own = own;
    begin(memory);
  }

  explicit Model(const network_memory &memory) { begin(memory); }

  Model(Model &&other) noexcept
      : handle_(std::exchange(other.handle_, {})),
        owned_(std::exchange(other.owned_, nullptr)),
        status_(std::exchange(other.status_, NETWORK_NOT_INITIALISED)) {}

  Model &operator=(Model &&other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(owned_, other.owned_);
    std::swap(status_, other.status_);
    return *this;
  }

  ~Model() { release(); }

  //{{calls}}

  // {{#variables}}
  // A variable's elements, row-major, by name; theirs is the type of C that its own is passed as.
  template <class Container>
  Result get(const char *variable, Container &&to) {
    const std::uint32_t number = network_find(variable);
    return done(network_get(&handle_, number, std::data(to), bytes_of(number, std::data(to), std::size(to))));
  }
  template <class Container>
  Result set(const char *variable, const Container &from) {
    const std::uint32_t number = network_find(variable);
    return done(network_set(&handle_, number, std::data(from), bytes_of(number, std::data(from), std::size(from))));
  }

  // All variables as they are at the start, or to and from an open file.
  Result reset() { return done(network_reset(&handle_)); }
  Result save(std::FILE *file) {
    const std::uint32_t code = network_save(&handle_, write, file);
    if (code == NETWORK_OK && std::fflush(file) != 0) return failed(NETWORK_WRITE_FAILED);
    return done(code);
  }
  Result load(std::FILE *file) {
    const bool longer = std::fseek(file, 0, SEEK_END) == 0 && std::ftell(file) > NETWORK_FILE_BYTES;
    return longer ? failed(NETWORK_OTHER_WEIGHTS) : done(network_load(&handle_, read, file));
  }

  // {{/variables}}
  // For what is only in C.
  network_handle *handle() noexcept { return &handle_; }
  std::uint32_t status() const noexcept { return status_; }

 private:
  // {{#variables}}
  // Bytes of so many elements; of elements of another type than a variable's, more than any has.
  template <class Element>
  static std::size_t bytes_of(std::uint32_t number, const Element *, std::size_t count) noexcept {
    if (number >= NETWORK_VARIABLES) return 0;
    const network_variable &variable = network_variables[number];
    const bool floating = variable.type[0] == 'f' && variable.size >= sizeof(float);
    const bool same = sizeof(Element) == variable.size && std::is_floating_point_v<Element> == floating;
    return same ? count * sizeof(Element) : SIZE_MAX;
  }
  static std::size_t write(void *file, const void *data, std::size_t bytes) noexcept {
    return std::fwrite(data, 1, bytes, static_cast<std::FILE *>(file));
  }
  static std::size_t read(void *file, std::size_t offset, void *data, std::size_t bytes) noexcept {
    auto *from = static_cast<std::FILE *>(file);
    if (std::fseek(from, static_cast<long>(offset), SEEK_SET) != 0) return 0;
    return std::fread(data, 1, bytes, from);
  }

  // {{/variables}}
  static constexpr std::align_val_t alignment{NETWORK_ALIGNMENT};
  static constexpr std::size_t owned_bytes = NETWORK_VARIABLES_BYTES + NETWORK_ARENA_BYTES;

  static unsigned char *allocate() {
#ifdef NETWORK_RETURN_CODES
    return static_cast<unsigned char *>(::operator new(owned_bytes, alignment, std::nothrow));
#else
    return static_cast<unsigned char *>(::operator new(owned_bytes, alignment));
#endif
  }

  void begin(const network_memory &memory) {
    status_ = network_init(&handle_, &memory);
#ifndef NETWORK_RETURN_CODES
    if (status_ != NETWORK_OK) {
      release();
      throw Error(status_);
    }
#endif
  }

  void release() noexcept { ::operator delete(owned_, alignment); }

  network_handle handle_{};
  unsigned char *owned_ = nullptr;
  std::uint32_t status_ = NETWORK_NOT_INITIALISED;
};

#ifdef NETWORK_RETURN_CODES
}  // namespace returning
#endif
}  // namespace {{space}}

#endif  // network_HPP
