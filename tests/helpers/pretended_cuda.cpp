// A CUDA device that is not there: its memory is the CPU's, and every operation is computed by the CPU. See
// pretended_cuda.py. Operations that mix devices fail as on a GPU, and so do those that wait for it in a capture.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>
#include <torch/library.h>
#include <pybind11/functional.h>

#include <functional>
#include <map>
#include <set>

using namespace at;
using c10::IValue;

namespace {
const Device GPU(kCUDA, 0);
std::mutex lock;
size_t allocated = 0, peak = 0;
std::set<const void*> pinned;
std::map<std::string, int64_t> waits, scalars;
thread_local int64_t stream_now = 0;
int64_t streams_made = 0, capturing = -1;  // the stream that is captured
struct Tape {
  std::vector<std::function<void()>> steps;
  std::vector<Tensor> outputs;
  std::map<StorageImpl*, std::pair<Storage, std::string>> before;
};
std::shared_ptr<Tape> tape;

bool captures() { return capturing >= 0 && stream_now == capturing; }

struct Block {
  void* data;
  size_t size;
};
struct Memory final : Allocator {
  DataPtr allocate(size_t n) override {
    auto* block = new Block{n ? std::calloc(n, 1) : nullptr, n};
    std::lock_guard<std::mutex> guard(lock);
    allocated += n;
    peak = std::max(peak, allocated);
    return {block->data, block, &release, GPU};
  }
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    {
      std::lock_guard<std::mutex> guard(lock);
      allocated -= block->size;
    }
    std::free(block->data);
    delete block;
  }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
} memory;
REGISTER_ALLOCATOR(kCUDA, &memory)

struct Pinned final : Allocator {
  DataPtr allocate(size_t n) override {
    void* data = std::malloc(n ? n : 1);
    std::lock_guard<std::mutex> guard(lock);
    pinned.insert(data);
    return {data, data, &release, kCPU};
  }
  static void release(void* data) {
    {
      std::lock_guard<std::mutex> guard(lock);
      pinned.erase(data);
    }
    std::free(data);
  }
  DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
} pinned_memory;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kCUDA; }
  Device exchangeDevice(Device) const override { return GPU; }
  Device getDevice() const override { return GPU; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return Stream(Stream::UNSAFE, GPU, stream_now); }
  Stream getDefaultStream(Device) const override { return Stream(Stream::UNSAFE, GPU, 0); }
  Stream getStreamFromGlobalPool(Device, bool) const override { return getNewStream(GPU, 0); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::UNSAFE, GPU, ++streams_made); }
  Stream exchangeStream(Stream s) const override {
    auto old = stream_now;
    stream_now = s.id();
    return Stream(Stream::UNSAFE, GPU, old);
  }
  void record(void** event, const Stream&, DeviceIndex, c10::EventFlag) const override { *event = (void*)1; }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(DeviceIndex) const override {}
  DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct Random final : c10::GeneratorImpl {
  Generator host;
  explicit Random(uint64_t seed)
      : GeneratorImpl(GPU, DispatchKeySet(DispatchKey::CUDA)), host(at::detail::createCPUGenerator(seed)) {}
  void set_current_seed(uint64_t s) override { host.set_current_seed(s); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const TensorImpl& s) override { host.unsafeGetGeneratorImpl()->set_state(s); }
  c10::intrusive_ptr<TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  void graphsafe_set_state(const c10::intrusive_ptr<GeneratorImpl>& s) override {
    host = static_cast<Random*>(s.get())->host;
  }
  c10::intrusive_ptr<GeneratorImpl> graphsafe_get_state() const override {
    auto out = c10::make_intrusive<Random>(0);
    out->host = host;
    return out;
  }
  Random* clone_impl() const override {
    auto* out = new Random(0);
    out->host = host.clone();
    return out;
  }
};
const Generator& default_random() {
  static Generator one = make_generator<Random>(c10::default_rng_seed_val);
  return one;
}

struct Hooks final : CUDAHooksInterface {
  explicit Hooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  std::string showConfig() const override { return "  - a pretended GPU\n"; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void deviceSynchronize(DeviceIndex) const override {}
  const Generator& getDefaultGenerator(DeviceIndex) const override { return default_random(); }
  Generator getNewGenerator(DeviceIndex) const override { return make_generator<Random>(c10::default_rng_seed_val); }
  Device getDeviceFromPtr(void*) const override { return GPU; }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> guard(lock);
    return pinned.count(data);
  }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  Allocator* getCUDADeviceAllocator() const override { return &memory; }
};
using at::CUDAHooksRegistry;
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", Hooks)

// What an operation computes with: tensors of the CPU in the memory of those of the device.
struct Twins {
  std::map<StorageImpl*, Storage> host_of;                   // by storages of the device
  std::map<StorageImpl*, Storage> ours_of;                   // by storages of the CPU
  std::map<TensorImpl*, std::pair<Tensor, Tensor>> tensors;  // by host tensor: host, ours
  std::vector<Tensor> hosts;
  bool any = false, asked_cpu = false, made = false;
  std::vector<Tensor> strangers;

  static Tensor view_on(const Storage& storage, DispatchKey key, const Tensor& like) {
    auto out = at::detail::make_tensor<TensorImpl>(Storage(storage), DispatchKeySet(key), like.dtype());
    auto* impl = out.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.is_conj()) impl->_set_conj(true);
    if (like.is_neg()) impl->_set_neg(true);
    return out;
  }
  Storage storage_to_host(const Storage& s) {
    auto* storage = s.unsafeGetStorageImpl();
    if (!host_of.count(storage)) {
      Storage host(Storage::use_byte_size_t(), s.nbytes(),
                   DataPtr(
                       storage->mutable_data(), new Storage(s), [](void* p) { delete static_cast<Storage*>(p); }, kCPU),
                   c10::GetAllocator(kCPU), true);
      host_of.emplace(storage, host);
      ours_of.emplace(host.unsafeGetStorageImpl(), s);
    }
    return host_of.at(storage);
  }
  Tensor to_host(const Tensor& t) {
    if (!t.defined()) return t;
    if (!t.is_cuda()) {
      if (t.device().is_cpu()) strangers.push_back(t);
      return t;
    }
    any = true;
    if (t.layout() == kSparse) {
      for (auto& [impl, pair] : tensors)
        if (pair.second.is_same(t)) return pair.first;
      auto* sparse = static_cast<SparseTensorImpl*>(t.unsafeGetTensorImpl());
      auto host = sparse_on(DispatchKey::SparseCPU, to_host(sparse->indices()), to_host(sparse->values()), t);
      tensors.emplace(host.unsafeGetTensorImpl(), std::make_pair(host, t));
      return host;
    }
    TORCH_CHECK(t.layout() == kStrided, "pretended GPU: layout ", t.layout());
    for (auto& [impl, pair] : tensors)
      if (pair.second.is_same(t)) return pair.first;
    auto host = view_on(storage_to_host(t.storage()), DispatchKey::CPU, t);
    tensors.emplace(host.unsafeGetTensorImpl(), std::make_pair(host, t));
    return host;
  }
  Storage wrap(const Storage& host) {
    auto found = ours_of.find(host.unsafeGetStorageImpl());
    if (found != ours_of.end()) return found->second;
    Storage ours(Storage::use_byte_size_t(), host.nbytes(),
                 DataPtr(
                     host.mutable_data(), new Storage(host), [](void* p) { delete static_cast<Storage*>(p); }, GPU),
                 &memory, true);
    ours_of.emplace(host.unsafeGetStorageImpl(), ours);
    return ours;
  }
  Tensor to_ours(const Tensor& t) {
    if (!t.defined() || !t.device().is_cpu()) return t;
    auto found = tensors.find(t.unsafeGetTensorImpl());
    if (found != tensors.end()) return found->second.second;
    for (auto& s : strangers)
      if (s.is_same(t)) return t;
    if (t.layout() == kSparse) {
      auto* sparse = static_cast<SparseTensorImpl*>(t.unsafeGetTensorImpl());
      return sparse_on(DispatchKey::SparseCUDA, to_ours(sparse->indices()), to_ours(sparse->values()), t);
    }
    return view_on(wrap(t.storage()), DispatchKey::CUDA, t);
  }
  static Tensor sparse_on(DispatchKey key, const Tensor& indices, const Tensor& values, const Tensor& like) {
    auto out = at::detail::make_tensor<SparseTensorImpl>(DispatchKeySet(key), like.dtype());
    auto* impl = static_cast<SparseTensorImpl*>(out.unsafeGetTensorImpl());
    auto* given = static_cast<SparseTensorImpl*>(like.unsafeGetTensorImpl());
    impl->resize_(given->sparse_dim(), given->dense_dim(), like.sizes());
    impl->set_indices_and_values_unsafe(indices, values);
    impl->set_coalesced(given->coalesced());
    return out;
  }
  void settle() {  // what was resized or set
    for (auto& [impl, pair] : tensors) {
      auto &host = pair.first, &t = pair.second;
      if (t.layout() == kSparse) {
        auto* from = static_cast<SparseTensorImpl*>(host.unsafeGetTensorImpl());
        auto* to = static_cast<SparseTensorImpl*>(t.unsafeGetTensorImpl());
        to->raw_resize_(from->sparse_dim(), from->dense_dim(), host.sizes());
        to->set_indices_and_values_unsafe(to_ours(from->indices()), to_ours(from->values()));
        to->set_coalesced(from->coalesced());
        continue;
      }
      auto* old = t.storage().unsafeGetStorageImpl();
      auto* now = host.storage().unsafeGetStorageImpl();
      if (host_of.count(old) && host_of.at(old).unsafeGetStorageImpl() == now) {
        if (host.storage().nbytes() != t.storage().nbytes()) {
          Storage keep(Storage::use_byte_size_t(), now->nbytes(), now->set_data_ptr(DataPtr(nullptr, kCPU)), nullptr,
                       false);
          old->set_data_ptr_noswap(
              DataPtr(keep.mutable_data(), new Storage(keep), [](void* p) { delete static_cast<Storage*>(p); }, GPU));
          old->set_nbytes(keep.nbytes());
          now->set_data_ptr_noswap(
              DataPtr(keep.mutable_data(), new Storage(keep), [](void* p) { delete static_cast<Storage*>(p); }, kCPU));
        }
      } else {
        t.unsafeGetTensorImpl()->set_storage_keep_dtype(wrap(host.storage()));
      }
      if (host.sizes() != t.sizes() || host.strides() != t.strides() || host.storage_offset() != t.storage_offset())
        t.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }
};

IValue map_tensors(const IValue& v, const std::function<Tensor(const Tensor&)>& f) {
  if (v.isTensor()) return f(v.toTensor());
  if (v.isTensorList()) {
    c10::List<Tensor> out;
    for (Tensor t : v.toTensorVector()) out.push_back(f(t));
    return out;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> out;
    for (std::optional<Tensor> t : v.toOptionalTensorList()) out.push_back(t ? std::optional<Tensor>(f(*t)) : t);
    return out;
  }
  return v;
}

IValue plain(const IValue& v, const std::string& type, Twins& twins) {
  if (v.isDevice()) {
    twins.made |= v.toDevice().is_cuda();
    twins.asked_cpu |= v.toDevice().is_cpu();
    return v.toDevice().is_cuda() ? IValue(Device(kCPU)) : v;
  }
  if (v.isGenerator()) {
    auto g = v.toGenerator();
    TORCH_CHECK(g.device().is_cuda(), "Expected a 'cuda' device type for generator but found 'cpu'");
    return static_cast<Random*>(g.unsafeGetGeneratorImpl())->host;
  }
  if (v.isNone() && type == "Generator?") return static_cast<Random*>(default_random().unsafeGetGeneratorImpl())->host;
  if (v.isStorage()) return v.toStorage().device().is_cuda() ? IValue(twins.storage_to_host(v.toStorage())) : v;
  return map_tensors(v, [&](const Tensor& t) { return twins.to_host(t); });
}

const std::set<std::string> WAITS{
    "aten::_local_scalar_dense", "aten::nonzero",       "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive",  "aten::masked_select", "aten::equal",    "aten::item"};

void compute(const c10::OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  const size_t count = schema.arguments().size();
  if (name == "aten::record_stream") return torch::jit::drop(stack, count);
  Twins twins;
  torch::jit::Stack host;
  auto ours = torch::jit::last(*stack, count).vec();
  for (size_t i = 0; i < count; ++i) host.push_back(plain(ours[i], schema.arguments()[i].type()->str(), twins));
  const bool copies = name == "aten::copy_" || name == "aten::_copy_from";
  if (twins.any && !copies)
    for (auto& t : twins.strangers) {
      if (t.dim() == 0) {
        std::lock_guard<std::mutex> guard(lock);
        ++scalars[name];
        continue;
      }
      if ((name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_") &&
          !t.is_same(ours[0].toTensor())) {
        std::lock_guard<std::mutex> guard(lock);
        ++scalars[name + " by a tensor of the CPU"];
        continue;
      }
      TORCH_CHECK(false,
                  "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (",
                  name, ")");
    }
  const bool to_cpu = copies && !ours[0].toTensor().is_cuda();
  const bool from_pageable = copies && ours[1].toTensor().device().is_cpu() && ours[1].toTensor().numel() &&
                             ours[1].toTensor().layout() == kStrided &&
                             !at::globalContext().isPinnedPtr(ours[1].toTensor().storage().data(), kCUDA);
  if (WAITS.count(name) || to_cpu || (captures() && from_pageable)) {
    TORCH_CHECK(!captures(), "CUDA error: operation not permitted when stream is capturing (", name, ")");
    std::lock_guard<std::mutex> guard(lock);
    ++waits[name];
  }
  if (captures())
    for (size_t i = 0; i < count; ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      if ((alias && alias->isWrite()) || name.find("batch_norm") != std::string::npos)
        map_tensors(ours[i], [&](const Tensor& t) {
          auto* s = t.defined() ? t.storage().unsafeGetStorageImpl() : nullptr;
          if (s && !tape->before.count(s))
            tape->before.emplace(s, std::make_pair(t.storage(), std::string((const char*)s->data(), s->nbytes())));
          return t;
        });
    }
  auto again = host;
  auto run = [op](torch::jit::Stack& s) {
    AutoDispatchBelowADInplaceOrView guard;
    c10::impl::ExcludeDispatchKeyGuard autocast(c10::autocast_dispatch_keyset);
    op.callBoxed(&s);
  };
  run(host);
  if (name.find("empty") != std::string::npos && host.size() == 1 && host[0].isTensor()) {  // kernels write nothing
    const auto made = host[0].toTensor();
    if (made.numel() && made.layout() == kStrided && !twins.ours_of.count(made.storage().unsafeGetStorageImpl()))
      std::memset(made.storage().mutable_data(), 0, made.storage().nbytes());
  }
  twins.settle();
  const bool stays = to_cpu || (!twins.any && twins.asked_cpu);
  torch::jit::drop(stack, count);
  std::vector<std::pair<size_t, Tensor>> fresh;
  for (size_t i = 0; i < host.size(); ++i) {
    torch::jit::push(stack, stays ? host[i] : map_tensors(host[i], [&](const Tensor& t) {
                       const bool is_new = t.defined() && t.layout() == kStrided &&
                                           !twins.ours_of.count(t.storage().unsafeGetStorageImpl());
                       auto out = twins.to_ours(t);
                       if (is_new && captures()) tape->outputs.push_back(out), fresh.emplace_back(i, t);
                       return out;
                     }));
  }
  if (captures() && name.find("empty") == std::string::npos)
    tape->steps.push_back([again, run, fresh] {
      auto now = again;
      run(now);
      std::vector<Tensor> found;
      size_t at_ = 0;
      for (size_t i = 0; i < now.size() && at_ < fresh.size(); ++i) {
        std::vector<Tensor> outs;
        map_tensors(now[i], [&](const Tensor& t) {
          outs.push_back(t);
          return t;
        });
        for (auto& t : outs) {
          if (at_ >= fresh.size() || fresh[at_].first != i) break;
          if (outs.size() == 1 || (t.defined() && t.sizes() == fresh[at_].second.sizes())) {
            TORCH_CHECK(t.sizes() == fresh[at_].second.sizes(), "pretended GPU: a replayed operation has another size");
            fresh[at_].second.copy_(t);
            ++at_;
          }
        }
      }
      TORCH_CHECK(at_ == fresh.size(), "pretended GPU: outputs of a replayed operation are missing");
    });
}

TORCH_LIBRARY_IMPL(_, SparseCUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>()); }
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>()); }
std::vector<std::unique_ptr<torch::Library>> libraries;
void register_all() {
  for (auto [ours, host] :
       {std::pair{DispatchKey::CUDA, DispatchKey::CPU}, std::pair{DispatchKey::SparseCUDA, DispatchKey::SparseCPU}}) {
    libraries.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", ours, __FILE__, __LINE__));
    for (auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name.rfind("aten::", 0) != 0) continue;
      auto op = c10::Dispatcher::singleton().findSchema(name);
      if (op && op->hasKernelForDispatchKey(host) && !op->hasKernelForDispatchKey(ours))
        libraries.back()->impl(
            (name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name)).c_str(),
            torch::CppFunction::makeFromBoxedFunction<&compute>());
    }
  }
  for (const char* name : {"copy_", "record_stream"}) {
    auto op = c10::Dispatcher::singleton().findSchema({std::string("aten::") + name, ""});
    if (op && !op->hasKernelForDispatchKey(DispatchKey::CUDA))
      libraries[0]->impl(name, torch::CppFunction::makeFromBoxedFunction<&compute>());
  }
}

struct Graph {
  std::shared_ptr<Tape> kept;
  Tensor random_state;
  void begin() {
    TORCH_CHECK(capturing < 0, "a capture is under way");
    TORCH_CHECK(stream_now != 0, "CUDA graphs must be captured on a non-default stream");
    kept = tape = std::make_shared<Tape>();
    capturing = stream_now;
    random_state = Tensor(default_random().unsafeGetGeneratorImpl()->get_state());
  }
  void end() {
    capturing = -1;
    default_random().unsafeGetGeneratorImpl()->set_state(*random_state.unsafeGetTensorImpl());
    auto old = std::move(tape);
    for (auto& t : old->outputs) std::memset(t.storage().mutable_data(), 0, t.storage().nbytes());
    for (auto& [s, pair] : old->before) std::memcpy(s->mutable_data(), pair.second.data(), pair.second.size());
    old->before.clear();
    old->outputs.clear();
  }
  void replay() {
    TORCH_CHECK(kept, "nothing was captured");
    NoGradGuard guard;
    for (auto& step : kept->steps) step();
  }
};
}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  register_all();
  m.def("current_stream", [] { return stream_now; });
  m.def("new_stream", [] { return ++streams_made; });
  m.def("set_stream", [](int64_t s) { stream_now = s; });
  m.def("capturing", [] { return captures(); });
  m.def("allocated", [] { return allocated; });
  m.def("peak", [] { return peak; });
  m.def("reset_peak", [] { peak = allocated; });
  m.def("default_generator", [] { return default_random(); });
  m.def("counts", [] { return std::make_pair(waits, scalars); });
  py::class_<Graph>(m, "Graph")
      .def(py::init<>())
      .def("begin", &Graph::begin)
      .def("end", &Graph::end)
      .def("replay", &Graph::replay);
}
