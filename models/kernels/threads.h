// Parallel loops on threads of our own, which sleep while there is no loop. The calling thread takes part in its loop and
// waits for no thread that has not begun. Whoever is free takes the next piece, so a thread that the system gives no core
// delays the loop at most by the piece that it has begun. All libraries of a process share the threads: the variable
// `current` is one for all of them where the compiler is GCC; elsewhere each library has threads of its own.
#pragma once
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <new>

#if defined(__GLIBC__) && defined(__x86_64__)
// The names that every glibc has, so that a wheel that is built with a new one can be loaded with an old one.
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask,pthread_sigmask@GLIBC_2.2.5");
#endif

namespace pool {

// How long a thread with nothing to do looks for work before it sleeps. To be woken takes as long.
constexpr int64_t SPIN_NANOSECONDS = 30'000;

// Waits until `done` is true, and returns false if that takes too long.
template <class Done>
bool spin(const Done& done) {
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
  };
  for (const int64_t start = now(); !done();) {
    if (now() - start > SPIN_NANOSECONDS) return false;
#if defined(__x86_64__)
    for (int i = 0; i < 8; i++) __builtin_ia32_pause();
#endif
  }
  return true;
}

// Holds a lock until the end of the block.
struct Locked {
  pthread_mutex_t& lock;
  explicit Locked(pthread_mutex_t& lock_) : lock(lock_) { pthread_mutex_lock(&lock); }
  Locked(const Locked&) = delete;
  ~Locked() { pthread_mutex_unlock(&lock); }
};

struct Loop {
  void (*work)(Loop&) noexcept;  // takes pieces until none is left
  const int64_t count, piece;
  int seats;  // threads that may still join; the pool's lock guards it
  std::atomic<int> inside{0};
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};  // there was no memory
  Loop* below = nullptr;            // the next of the pool's open loops

  Loop(void (*work_)(Loop&) noexcept, int64_t count_, int64_t piece_, int64_t num_threads)
      : work(work_),
        count(count_),
        piece(std::max<int64_t>(piece_, 1)),
        seats(int(std::min(num_threads, (count + piece - 1) / piece)) - 1) {}
};

class Pool {
 public:
  void run(Loop& loop) {
    add(loop);
    loop.work(loop);
    remove(loop);
    const auto done = [&] { return loop.inside.load(std::memory_order_acquire) == 0; };
    if (spin(done)) return;
    Locked locked(lock);
    while (!done()) pthread_cond_wait(&left, &lock);
  }

 private:
  void add(Loop& loop) {
    Locked locked(lock);
    while (num_threads < loop.seats && start_thread()) num_threads++;
    loop.below = open, open = &loop;
    num_opened.fetch_add(1, std::memory_order_release);
    wake(std::min(2, loop.seats));
  }

  void remove(const Loop& loop) {
    Locked locked(lock);
    Loop** at = &open;
    while (*at != &loop) at = &(*at)->below;
    *at = loop.below;
  }

  // Wakes a few threads. Each of them wakes two more if there are seats left.
  void wake(int count) {
    for (int i = 0; i < std::min(count, num_sleeping); i++) pthread_cond_signal(&opened);
  }

  // Returns an open loop with a free seat, or null.
  Loop* find() const {
    Loop* loop = open;
    while (loop && (loop->seats <= 0 || loop->next.load(std::memory_order_relaxed) >= loop->count)) loop = loop->below;
    return loop;
  }

  bool start_thread() {
    sigset_t all, before;  // signals are for the threads of the program
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    const int status = pthread_create(
        &thread, nullptr,
        [](void* pool) -> void* {
          static_cast<Pool*>(pool)->serve();
          return nullptr;
        },
        this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return status == 0;  // the caller can do all alone
  }

  [[noreturn]] void serve() {
    pthread_mutex_lock(&lock);
    for (;;) {
      if (Loop* loop = find()) {
        loop->seats--;
        loop->inside.fetch_add(1, std::memory_order_relaxed);
        if (const Loop* more = find()) wake(std::min(2, more->seats));
        pthread_mutex_unlock(&lock);
        loop->work(*loop);
        pthread_mutex_lock(&lock);
        if (loop->inside.fetch_sub(1, std::memory_order_release) == 1) pthread_cond_broadcast(&left);
        continue;
      }
      const uint64_t seen = num_opened.load(std::memory_order_relaxed);
      const auto is_new = [&] { return num_opened.load(std::memory_order_acquire) != seen; };
      pthread_mutex_unlock(&lock);
      const bool found = spin(is_new);
      pthread_mutex_lock(&lock);
      if (found || is_new()) continue;
      num_sleeping++;
      pthread_cond_wait(&opened, &lock);
      num_sleeping--;
    }
  }

  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t opened = PTHREAD_COND_INITIALIZER, left = PTHREAD_COND_INITIALIZER;
  Loop* open = nullptr;  // the last opened first, so that a loop within a loop ends soon
  int num_threads = 0, num_sleeping = 0;
  std::atomic<uint64_t> num_opened{0};
};

inline std::atomic<Pool*> current{nullptr};

// The process's pool. It is never destroyed, since its threads end with the process.
inline Pool& get() {
  if (Pool* pool = current.load(std::memory_order_acquire)) return *pool;
  Pool *fresh = new Pool, *none = nullptr;
  if (!current.compare_exchange_strong(none, fresh)) {
    delete fresh;
    return *none;
  }
  // A child process has none of the threads, and another thread may have held the lock.
  pthread_atfork(nullptr, nullptr, [] { current.store(new Pool); });
  return *fresh;
}

}  // namespace pool

// Calls body(i, room) for every i below `count`, on up to `num_threads` threads that take `piece` of them at a time. Each
// of the threads has one room, which make() makes. Which thread takes which piece may change from call to call.
template <class Make, class Body>
void parallel_for(int64_t num_threads, int64_t count, int64_t piece, const Make& make, const Body& body) {
  struct Mine : pool::Loop {
    const Make& make;
    const Body& body;
    Mine(int64_t count_, int64_t piece_, int64_t num_threads_, const Make& make_, const Body& body_)
        : Loop(take, count_, piece_, num_threads_), make(make_), body(body_) {}

    static void take(pool::Loop& loop) noexcept {
      const Mine& own = static_cast<Mine&>(loop);
      int64_t begin = loop.next.fetch_add(loop.piece, std::memory_order_relaxed);
      if (begin >= loop.count) return;
      try {
        auto room = own.make();
        for (; begin < loop.count; begin = loop.next.fetch_add(loop.piece, std::memory_order_relaxed))
          for (int64_t i = begin, end = std::min(begin + loop.piece, loop.count); i < end; i++) own.body(i, room);
      } catch (const std::bad_alloc&) {
        loop.failed = true, loop.next = loop.count;
      }
    }
  } loop(count, piece, num_threads, make, body);
  if (loop.seats > 0) pool::get().run(loop);
  else loop.work(loop);
  if (loop.failed) throw std::bad_alloc();
}

// The same for body(i) without a room.
template <class Body>
void parallel_for(int64_t num_threads, int64_t count, int64_t piece, const Body& body) {
  parallel_for(num_threads, count, piece, [] { return 0; }, [&](int64_t i, int) { body(i); });
}
