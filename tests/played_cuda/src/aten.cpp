// The computing bridge: ATen's operators for CUDA, computed by their CPU kernels on the fake
// device's thread. Device memory is host memory, so a CPU tensor can alias it. Shapes come from the
// operators' Meta kernels, so that the host goes on at once, as with a real GPU.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/native/Copy.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "played.h"

namespace at::native {
TORCH_API Tensor& copy_(Tensor& self, const Tensor& src, bool non_blocking);
}

namespace {
using c10::IValue;
using torch::jit::Stack;

bool on_cuda(const at::Tensor& t) {
  return t.defined() && t.is_cuda() && t.layout() == at::kStrided;
}

at::Tensor shadow(const at::Tensor& t, c10::DispatchKey key) {
  c10::Device device(key == c10::DispatchKey::Meta ? c10::kMeta : c10::kCPU);
  void* data = key == c10::DispatchKey::Meta ? nullptr : const_cast<void*>(t.storage().data());
  c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
                       c10::DataPtr(data, device),
                       key == c10::DispatchKey::Meta ? c10::GetAllocator(c10::kMeta) : nullptr,
                       key == c10::DispatchKey::Meta);
  auto out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                      t.dtype());
  auto* impl = out.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.is_conj()) out._set_conj(true);
  if (t.is_neg()) out._set_neg(true);
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return out;
}

struct Shadows {
  c10::DispatchKey key;
  at::Generator generator;
  uint64_t bytes = 0;
  IValue of(const IValue& v) {
    bool meta = key == c10::DispatchKey::Meta;
    if (v.isTensor()) {
      const auto& t = v.toTensor();
      if (t.defined() && t.layout() == at::kStrided &&
          (t.is_cuda() || (meta && t.is_cpu() && t.dim() > 0))) {
        bytes += t.nbytes();
        return shadow(t, key);
      }
      return v;
    }
    if (v.isTensorList()) {
      c10::List<at::Tensor> out;
      for (const at::Tensor& t : v.toTensorVector()) out.push_back(of(IValue(t)).toTensor());
      return out;
    }
    if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> out;
      for (const std::optional<at::Tensor>& t : v.toOptionalTensorVector()) {
        if (t && t->defined())
          out.push_back(of(IValue(*t)).toTensor());
        else
          out.push_back(std::nullopt);
      }
      return out;
    }
    if (v.isDevice() && v.toDevice().is_cuda())
      return IValue(c10::Device(meta ? c10::kMeta : c10::kCPU));
    if (v.isGenerator()) return meta || !generator.defined() ? IValue() : IValue(generator);
    return v;
  }
};

void for_tensors(const IValue& v, const std::function<void(const at::Tensor&)>& f) {
  if (v.isTensor()) {
    if (v.toTensor().defined()) f(v.toTensor());
  } else if (v.isTensorList()) {
    for (const at::Tensor& t : v.toTensorVector()) f(t);
  } else if (v.isOptionalTensorList()) {
    for (const auto& t : v.toOptionalTensorVector())
      if (t && t->defined()) f(*t);
  }
}

const char* kernel_name(const std::string& op) {
  static std::mutex lock;
  static std::unordered_map<std::string, const char*> names;
  std::lock_guard<std::mutex> g(lock);
  auto& name = names[op];
  if (name) return name;
  auto has = [&](const char* s) { return op.find(s) != std::string::npos; };
  std::string base = op.substr(op.rfind(':') + 1), text;
  if (has("mm") && !has("comm"))
    text = "ampere_sgemm_128x64_nn<" + base + ">";
  else if (has("convolution_backward"))
    text = "cudnn::cnn::wgrad2d_grouped_direct_kernel<float>";
  else if (has("convolution"))
    text = "implicit_convolve_sgemm<float, 128, 5, 5>";
  else if (has("batch_norm"))
    text = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<" + base + ">";
  else if (has("foreach") || has("fused"))
    text = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<" + base + ">";
  else if (has("::sum") || has("::mean") || has("norm") || has("::max") || has("::min") ||
           has("::all") || has("::any"))
    text = "void at::native::reduce_kernel<512, 1, at::native::" + base + ">";
  else if (has("::copy_"))
    text = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>";
  else
    text =
        "void at::native::vectorized_elementwise_kernel<4, at::native::" + base + "_kernel_cuda>";
  return name = played_intern(text.c_str());
}

struct Job {
  c10::OperatorHandle op;
  Stack stack;
  std::vector<at::Tensor> outs;  // aliases of what was allocated for the results
  std::function<void(Stack&)> body;
  Stack results;
  bool keep = false;
  void run() {
    at::AutoDispatchBelowADInplaceOrView below;
    Stack s = stack;
    if (body)
      body(s);
    else
      op.callBoxed(s);
    if (keep) {
      results = std::move(s);
      return;
    }
    size_t i = 0;
    for (auto& v : s)
      for_tensors(v, [&](const at::Tensor& t) {
        // batch norm in eval mode: the Meta kernel has statistics of the batch, the CPU's has none
        bool nothing = t.numel() == 0;
        if (i < outs.size() && outs[i].defined() && !outs[i].is_same(t) && !nothing)
          outs[i].copy_(t);
        i++;
      });
  }
};

void enqueue(std::shared_ptr<Job> job, const std::string& name, uint64_t bytes) {
  played::Item item;
  item.name = kernel_name(name);
  item.bytes = bytes;
  item.run = [job] { job->run(); };
  int e = played_launch(c10::cuda::getCurrentCUDAStream().stream(), &item);
  TORCH_CHECK(e == 0, "CUDA error: played_cuda ", e);
}

at::Tensor like(const at::Tensor& meta, c10::Device device) {
  return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(device));
}

at::Generator next_generator(const std::optional<at::Generator>& given) {
  static std::atomic<uint64_t> captured{0};
  if (played_is_capturing(c10::cuda::getCurrentCUDAStream().stream()))
    return at::detail::createCPUGenerator(0x9e3779b9u + captured++);
  at::Generator gen = given && given->defined() && given->device().is_cuda()
                          ? *given
                          : at::cuda::detail::getDefaultCUDAGenerator();
  std::lock_guard<std::mutex> g(gen.mutex());
  uint64_t seed = gen.current_seed(), offset = gen.get_offset();
  // as torch's kernels do; set_offset would let an RNN with dropout read a new seed in each call
  at::check_generator<at::CUDAGeneratorImpl>(gen)->set_philox_offset_per_thread(offset + 4);
  return at::detail::createCPUGenerator(seed * 0x9e3779b97f4a7c15ull + offset);
}

const std::unordered_set<std::string>& syncing() {
  static const auto* s = new std::unordered_set<std::string>{"aten::nonzero",
                                                             "aten::masked_select",
                                                             "aten::_unique",
                                                             "aten::_unique2",
                                                             "aten::unique_dim",
                                                             "aten::unique_consecutive",
                                                             "aten::unique_dim_consecutive",
                                                             "aten::equal",
                                                             "aten::bincount",
                                                             "aten::repeat_interleave",
                                                             "aten::is_nonzero"};
  return *s;
}

std::mutex no_meta_lock;
std::unordered_set<std::string> no_meta;

// the whole: on the host shapes and allocations; on the device's thread the operator's CPU kernel
void compute(const c10::OperatorHandle& op, Stack* stack, const std::string& name,
             const std::function<void(Stack&)>& body = nullptr,
             const c10::OperatorHandle* shapes = nullptr) {
  const auto& schema = op.schema();
  size_t n = schema.arguments().size();
  Stack args(stack->end() - n, stack->end());

  c10::Device device(c10::kCUDA, c10::cuda::current_device());
  bool placed = false;
  for (auto& v : args)
    for_tensors(v, [&](const at::Tensor& t) {
      if (!placed && t.is_cuda()) {
        device = t.device();
        placed = true;
      }
    });
  if (!placed)
    for (auto& v : args)
      if (v.isDevice() && v.toDevice().is_cuda() && v.toDevice().has_index()) device = v.toDevice();
  c10::cuda::CUDAGuard guard(device);

  at::Generator generator;
  for (size_t i = 0; i < n; i++)
    if (schema.arguments()[i].type()->str().find("Generator") != std::string::npos) {
      std::optional<at::Generator> given;
      if (args[i].isGenerator()) given = args[i].toGenerator();
      generator = next_generator(given);
    }

  // shapes
  Stack meta;
  bool known = false;
  bool plain_results = false;
  for (const auto& r : schema.returns())
    if (r.type()->str().find("Tensor") == std::string::npos) plain_results = true;
  std::string full = toString(op.operator_name());
  {
    std::lock_guard<std::mutex> g(no_meta_lock);
    known = !plain_results && !no_meta.count(full) && !syncing().count(name);
  }
  Shadows as_meta{c10::DispatchKey::Meta};
  Stack meta_args;
  if (known) {
    try {
      at::AutoDispatchBelowADInplaceOrView below;
      at::DisableRecordFunctionGuard unseen;  // a profiler shall not see how the shapes are found
      for (auto& v : args) meta_args.push_back(as_meta.of(v));
      for (size_t i = 0; i < n; i++) {
        if (schema.arguments()[i].type()->str().find("Generator") != std::string::npos)
          meta_args[i] = IValue();
      }
      meta = meta_args;
      op.callBoxed(meta);
    } catch (const c10::NotImplementedError&) {
      known = false;
      std::lock_guard<std::mutex> g(no_meta_lock);
      no_meta.insert(full);
    } catch (const std::exception&) {
      known = false;  // the CPU kernel will say what is wrong
    }
  }

  // results that alias an argument are that argument
  auto aliased = [&](size_t i) -> int {
    const auto* info = schema.returns()[i].alias_info();
    if (!info) return -1;
    for (size_t k = 0; k < n; k++) {
      const auto* a = schema.arguments()[k].alias_info();
      if (a && a->isWrite() && a->beforeSets() == info->beforeSets()) return (int)k;
    }
    return -1;
  };
  auto resize = [&](size_t k, const at::Tensor& wanted) {
    const at::Tensor& t = args[k].toTensor();
    if (t.sizes() != wanted.sizes()) {
      t.resize_(wanted.sizes());
      t.unsafeGetTensorImpl()->set_sizes_and_strides(wanted.sizes(), wanted.strides());
    }
  };

  auto job = std::make_shared<Job>(Job{op});
  job->body = body;
  Stack out;
  if (known) {
    for (size_t k = 0; k < n; k++)
      if (schema.arguments()[k].is_out() && args[k].isTensor() && meta_args[k].isTensor())
        resize(k, meta_args[k].toTensor());
    for (size_t i = 0; i < meta.size(); i++) {
      int k = aliased(i);
      if (k >= 0) {
        out.push_back(args[k]);
        for_tensors(args[k], [&](const at::Tensor&) { job->outs.emplace_back(); });
        continue;
      }
      if (meta[i].isTensor()) {
        const auto& m = meta[i].toTensor();
        at::Tensor t = m.defined() ? like(m, device) : at::Tensor();
        if (m.defined()) job->outs.push_back(shadow(t, c10::DispatchKey::CPU));
        out.emplace_back(t);
      } else if (meta[i].isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& m : meta[i].toTensorVector()) {
          list.push_back(like(m, device));
          job->outs.push_back(shadow(list.get(list.size() - 1), c10::DispatchKey::CPU));
        }
        out.emplace_back(list);
      } else {
        out.push_back(meta[i]);
      }
    }
  }
  Shadows as_cpu{c10::DispatchKey::CPU, generator};
  for (auto& v : args) job->stack.push_back(as_cpu.of(v));
  if (generator.defined())
    for (size_t i = 0; i < n; i++)
      if (schema.arguments()[i].type()->str().find("Generator") != std::string::npos)
        job->stack[i] = IValue(generator);

  auto stream = c10::cuda::getCurrentCUDAStream();
  if (known) {
    enqueue(job, name, as_cpu.bytes);
  } else {
    // the host needs the result to go on
    job->keep = true;
    // out= tensors that may be resized: computed into new ones
    std::vector<std::pair<size_t, at::Tensor>> fresh;
    for (size_t k = 0; k < n; k++)
      if (schema.arguments()[k].is_out() && job->stack[k].isTensor()) {
        auto t = at::empty({0}, job->stack[k].toTensor().options());
        fresh.emplace_back(k, t);
        job->stack[k] = t;
      }
    std::exception_ptr error;
    auto inner = job;
    played::Item item;
    item.name = kernel_name(name);
    item.bytes = as_cpu.bytes;
    item.run = [inner, &error] {
      try {
        inner->run();
      } catch (...) {
        error = std::current_exception();
      }
    };
    played_launch(stream.stream(), &item);
    if (syncing().count(name)) {
      c10::cuda::stream_synchronize(stream.stream());
    } else if (played_is_capturing(stream.stream())) {
      TORCH_CHECK(false, "played_cuda: ", full, " cannot be captured: its shapes are not known");
    } else {
      played_drain(stream.stream());
    }
    if (error) std::rethrow_exception(error);
    auto settle = [&](const at::Tensor& cpu, const at::Tensor& into) {
      auto copy = std::make_shared<Job>(Job{op});
      copy->stack = {IValue(cpu)};
      copy->body = [](Stack&) {};
      copy->outs = {shadow(into, c10::DispatchKey::CPU)};
      copy->run();  // in the process's own memory, and the stream is idle
    };
    for (auto& [k, t] : fresh) {
      resize(k, t);
      settle(t, args[k].toTensor());
    }
    for (size_t i = 0; i < job->results.size(); i++) {
      int k = aliased(i);
      auto& r = job->results[i];
      if (k >= 0) {
        out.push_back(args[k]);
        continue;
      }
      if (r.isTensor() && r.toTensor().defined()) {
        auto t = like(r.toTensor(), device);
        settle(r.toTensor(), t);
        out.emplace_back(t);
      } else if (r.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& m : r.toTensorVector()) {
          auto t = like(m, device);
          settle(m, t);
          list.push_back(t);
        }
        out.emplace_back(list);
      } else {
        out.push_back(r);
      }
    }
  }
  torch::jit::drop(*stack, n);
  for (auto& v : out) stack->push_back(std::move(v));
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  compute(op, stack, op.operator_name().name);
}

c10::OperatorHandle find(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}
template <class... A>
std::vector<IValue> call(const char* name, const char* shown, A&&... a) {
  auto op = find(name);
  Stack stack{IValue(std::forward<A>(a))...};
  compute(op, &stack, shown);
  return stack;
}

// --- operators that only CUDA has, or that need more ---------------------------------------
at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  bool both = on_cuda(self) && on_cuda(src) && self.device() == src.device();
  bool plain = both && self.dtype() == src.dtype() && self.is_conj() == src.is_conj() &&
               self.is_neg() == src.is_neg() && self.sizes() == src.sizes() &&
               ((self.is_contiguous() && src.is_contiguous()) ||
                (self.strides() == src.strides() && self.is_non_overlapping_and_dense()));
  if (!both || plain) return at::native::copy_(self, src, non_blocking);
  static auto op = find("aten::copy_");
  Stack stack{self, src, non_blocking};
  compute(op, &stack, "aten::copy_");
  return self;
}
at::Tensor cudnn_convolution(const at::Tensor& x, const at::Tensor& w, c10::SymIntArrayRef padding,
                             c10::SymIntArrayRef stride, c10::SymIntArrayRef dilation,
                             c10::SymInt groups, bool, bool, bool) {
  std::vector<int64_t> p, s, d;
  for (auto& v : padding) p.push_back(v.expect_int());
  for (auto& v : stride) s.push_back(v.expect_int());
  for (auto& v : dilation) d.push_back(v.expect_int());
  std::vector<int64_t> zero(p.size(), 0);
  return call("aten::convolution", "aten::cudnn_convolution", x, w, IValue(), s, p, d, false, zero,
              groups.expect_int())[0]
      .toTensor();
}
at::Tensor cudnn_convolution_transpose(const at::Tensor& x, const at::Tensor& w,
                                       c10::SymIntArrayRef padding,
                                       c10::SymIntArrayRef output_padding,
                                       c10::SymIntArrayRef stride, c10::SymIntArrayRef dilation,
                                       c10::SymInt groups, bool, bool, bool) {
  std::vector<int64_t> p, s, d, o;
  for (auto& v : padding) p.push_back(v.expect_int());
  for (auto& v : stride) s.push_back(v.expect_int());
  for (auto& v : dilation) d.push_back(v.expect_int());
  for (auto& v : output_padding) o.push_back(v.expect_int());
  return call("aten::convolution", "aten::cudnn_convolution_transpose", x, w, IValue(), s, p, d,
              true, o, groups.expect_int())[0]
      .toTensor();
}
at::Tensor depthwise(const at::Tensor& x, const at::Tensor& w, c10::SymIntArrayRef,
                     const std::optional<at::Tensor>& b, c10::SymIntArrayRef stride,
                     c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation) {
  std::vector<int64_t> p, s, d;
  for (auto& v : padding) p.push_back(v.expect_int());
  for (auto& v : stride) s.push_back(v.expect_int());
  for (auto& v : dilation) d.push_back(v.expect_int());
  std::vector<int64_t> zero(p.size(), 0);
  return call("aten::convolution", "aten::_conv_depthwise2d", x, w,
              b && b->defined() ? IValue(*b) : IValue(), s, p, d, false, zero, x.size(1))[0]
      .toTensor();
}
IValue maybe(const std::optional<at::Tensor>& t) {
  return t && t->defined() ? IValue(*t) : IValue();
}
using T4 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using T3 = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using T2 = std::tuple<at::Tensor, at::Tensor>;
T4 cudnn_batch_norm(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b,
                    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& var,
                    bool training, double momentum, double eps) {
  auto r = call("aten::native_batch_norm", "aten::cudnn_batch_norm", x, w, maybe(b), maybe(mean),
                maybe(var), training, momentum, eps);
  auto none = at::empty({0}, w.options());
  return {r[0].toTensor(), training ? r[1].toTensor() : none, training ? r[2].toTensor() : none,
          at::empty({0}, x.options().dtype(at::kByte))};
}
T3 cudnn_batch_norm_backward(const at::Tensor& x, const at::Tensor& g, const at::Tensor& w,
                             const std::optional<at::Tensor>& mean,
                             const std::optional<at::Tensor>& var,
                             const std::optional<at::Tensor>& save_mean,
                             const std::optional<at::Tensor>& save_var, double eps,
                             const at::Tensor&) {
  auto r = call("aten::native_batch_norm_backward", "aten::cudnn_batch_norm_backward", g, x, w,
                maybe(mean), maybe(var), maybe(save_mean), maybe(save_var), true, eps,
                std::vector<bool>{true, true, true});
  return {r[0].toTensor(), r[1].toTensor(), r[2].toTensor()};
}
T2 native_dropout(const at::Tensor& x, double p, std::optional<bool> train) {
  if (train && !*train) return {x.clone(), at::ones_like(x, at::kBool)};
  auto mask = at::empty_like(x, at::kBool);
  mask.bernoulli_(1 - p);
  return {p == 1 ? at::zeros_like(x) : x * mask * (1 / (1 - p)), mask};
}
std::vector<std::optional<at::Tensor>> without_masks(
    const c10::List<std::optional<at::Tensor>>& indices) {
  std::vector<std::optional<at::Tensor>> out;
  for (std::optional<at::Tensor> i : indices) {
    if (i && i->defined() && (i->scalar_type() == at::kBool || i->scalar_type() == at::kByte)) {
      auto where = at::nonzero(*i);
      for (int64_t k = 0; k < where.size(1); k++) out.emplace_back(where.select(1, k));
    } else {
      out.push_back(i);
    }
  }
  return out;
}
void on_device(std::vector<std::optional<at::Tensor>>& indices, c10::Device d) {
  for (auto& i : indices)
    if (i && i->defined() && i->device() != d) i = i->to(d);
}
at::Tensor index(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices) {
  auto plain = without_masks(indices);
  on_device(plain, self.device());
  static auto op = find("aten::index", "Tensor");
  Stack stack{self, c10::List<std::optional<at::Tensor>>(plain)};
  compute(op, &stack, "aten::index");
  return stack[0].toTensor();
}
at::Tensor& index_put_impl(at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
                           const at::Tensor& values, bool accumulate, bool unsafe) {
  if (indices.size() == 1 && !accumulate && values.numel() == 1 &&
      values.device() == self.device()) {
    std::optional<at::Tensor> only = indices.get(0);
    if (only && only->defined() && only->scalar_type() == at::kBool && only->dim() <= self.dim()) {
      auto mask = *only;
      while (mask.dim() < self.dim()) mask = mask.unsqueeze(-1);
      self.masked_fill_(mask, values.reshape({}));
      return self;
    }
  }
  auto plain = without_masks(indices);
  on_device(plain, self.device());
  static auto op = find("aten::_index_put_impl_");
  Stack stack{self, c10::List<std::optional<at::Tensor>>(plain), values.to(self.device()),
              accumulate, unsafe};
  compute(op, &stack, "aten::_index_put_impl_");
  return self;
}

// --- cuDNN's recurrent networks, by the CPU's ----------------------------------------------
// Dropout between layers is left out: the forward pass and the backward pass, which runs the
// forward pass again, would have to draw the same mask.
struct Rnn {
  at::Tensor input, hx, cx;
  std::vector<at::Tensor> weights;
  int64_t mode, layers;
  bool biases, batch_first, train, bidirectional;
  at::Tensor lengths;  // of packed sequences; undefined otherwise

  // `mode_at`: the index of "mode" among the arguments; hidden_size, proj_size, … follow it
  Rnn(const Stack& args, size_t mode_at)
      : input(args[0].toTensor()),
        hx(args[4].toTensor()),
        weights(args[1].toTensorVector()),
        mode(args[mode_at].toInt()),
        layers(args[mode_at + 3].toInt()),
        biases(args[2].toInt() >= 4),
        batch_first(args[mode_at + 4].toBool()),
        train(args[mode_at + 6].toBool()),
        bidirectional(args[mode_at + 7].toBool()) {
    if (args[5].isTensor()) cx = args[5].toTensor();
    auto sizes = args[mode_at + 8].toIntVector();
    if (!sizes.empty()) lengths = at::tensor(sizes, at::kLong);
  }

  std::vector<at::Tensor> run() const {
    if (mode == 2) {
      auto r = lengths.defined() ? at::lstm(input, lengths, {hx, cx}, weights, biases, layers, 0.0,
                                            train, bidirectional)
                                 : at::lstm(input, {hx, cx}, weights, biases, layers, 0.0, train,
                                            bidirectional, batch_first);
      return {std::get<0>(r), std::get<1>(r), std::get<2>(r)};
    }
    auto by = [&](auto packed, auto padded) -> std::vector<at::Tensor> {
      auto r = lengths.defined() ? packed() : padded();
      return {std::get<0>(r), std::get<1>(r)};
    };
#define PLAYED_RNN(f)                                                                             \
  by(                                                                                             \
      [&] {                                                                                       \
        return at::f(input, lengths, hx, weights, biases, layers, 0.0, train, bidirectional);     \
      },                                                                                          \
      [&] {                                                                                       \
        return at::f(input, hx, weights, biases, layers, 0.0, train, bidirectional, batch_first); \
      })
    if (mode == 3) return PLAYED_RNN(gru);
    if (mode == 1) return PLAYED_RNN(rnn_tanh);
    return PLAYED_RNN(rnn_relu);
#undef PLAYED_RNN
  }
};

void rnn_forward(Stack& args) {
  auto out = Rnn(args, 6).run();
  auto none = at::empty({0}, args[0].toTensor().options());
  args = {out[0].contiguous(), out[1].contiguous(), out.size() > 2 ? out[2].contiguous() : none,
          at::empty({0}, at::kByte), none};
}

void rnn_backward(Stack& args) {
  Rnn net(args, 10);
  // the job runs below autograd; here it is needed once more
  c10::impl::PODLocalDispatchKeySet keys{};
  keys.set_included(c10::default_included_set);
  keys.set_excluded(c10::default_excluded_set);
  c10::impl::ForceDispatchKeyGuard all_keys{c10::impl::LocalDispatchKeySet(keys)};
  at::AutoGradMode on(true);
  std::vector<at::Tensor> leaves;
  auto leaf = [&](at::Tensor& t) {
    t = t.detach().requires_grad_();
    leaves.push_back(t);
  };
  leaf(net.input);
  leaf(net.hx);
  if (net.cx.defined()) leaf(net.cx);
  for (auto& w : net.weights) leaf(w);
  std::vector<at::Tensor> outputs, gradients;
  auto results = net.run();
  for (size_t i = 0; i < results.size(); i++)
    if (args[7 + i].isTensor() && args[7 + i].toTensor().defined()) {
      outputs.push_back(results[i]);
      gradients.push_back(args[7 + i].toTensor());
    }
  auto found = torch::autograd::grad(outputs, leaves, gradients, std::nullopt, false, true);
  for (size_t i = 0; i < found.size(); i++)
    found[i] = found[i].defined() ? found[i].contiguous() : at::zeros_like(leaves[i]).detach();
  size_t states = net.cx.defined() ? 3 : 2;
  c10::List<at::Tensor> weights;
  for (size_t i = states; i < found.size(); i++) weights.push_back(found[i]);
  args = {found[0], found[1], states == 3 ? IValue(found[2]) : IValue(at::Tensor()),
          IValue(weights)};
}

// of 16-bit inputs CUDA keeps mean and rstd in 32 bits, the CPU's kernel in the weight's type
template <size_t mean, size_t weight>
void norm_backward(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  auto body = [op](Stack& args) {
    const auto& like = args[weight].isTensor() && args[weight].toTensor().defined() ? args[weight]
                                                                                    : args[1];
    auto type = like.toTensor().scalar_type();
    for (size_t i : {mean, mean + 1}) args[i] = args[i].toTensor().to(type);
    op.callBoxed(args);
  };
  compute(op, stack, op.operator_name().name, body);
}

void cudnn_rnn(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  // the shapes come from a Meta kernel that hands this buffer through
  auto& buffer = (*stack)[stack->size() - op.schema().arguments().size() + 3];
  const auto& input = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
  if (!buffer.isTensor() || !buffer.toTensor().defined()) buffer = at::empty({0}, input.options());
  compute(op, stack, "aten::_cudnn_rnn", rnn_forward);
}
void cudnn_rnn_backward(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  compute(op, stack, "aten::_cudnn_rnn_backward", rnn_backward);
}
at::Tensor cudnn_rnn_flatten_weight(at::TensorList weights, int64_t, c10::SymInt, int64_t,
                                    c10::SymInt, c10::SymInt, int64_t, bool, bool) {
  return at::empty({0}, weights[0].options());  // the weights stay where they are
}

std::vector<std::unique_ptr<torch::Library>>& libraries() {
  static auto* l = new std::vector<std::unique_ptr<torch::Library>>;
  return *l;
}
struct Quiet : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

struct Install {
  Install() {
    Quiet quiet;
    c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    static const std::unordered_set<std::string> own{"copy_",
                                                     "cudnn_convolution",
                                                     "cudnn_convolution_transpose",
                                                     "_conv_depthwise2d",
                                                     "cudnn_batch_norm",
                                                     "cudnn_batch_norm_backward",
                                                     "native_dropout",
                                                     "native_layer_norm_backward",
                                                     "native_group_norm_backward",
                                                     "_cudnn_rnn",
                                                     "_cudnn_rnn_backward",
                                                     "_cudnn_rnn_flatten_weight",
                                                     "index.Tensor",
                                                     "_index_put_impl_"};
    static const std::unordered_set<std::string> leave{"empty.memory_format",
                                                       "empty_strided",
                                                       "as_strided",
                                                       "resize_",
                                                       "resize_as_",
                                                       "_local_scalar_dense",
                                                       "record_stream",
                                                       "_pin_memory",
                                                       "pin_memory",
                                                       "is_pinned",
                                                       "set_.source_Storage_storage_offset",
                                                       "set_.source_Storage",
                                                       "set_.source_Tensor",
                                                       "set_",
                                                       "_copy_from",
                                                       "_copy_from_and_resize",
                                                       "_has_same_storage_numel",
                                                       "is_set_to",
                                                       "_fused_sdp_choice",
                                                       "_efficientzerotensor",
                                                       "_nested_view_from_buffer"};
    auto lib = std::make_unique<torch::Library>(torch::Library::IMPL, "aten",
                                                c10::DispatchKey::CUDA, __FILE__, __LINE__);
    int n = 0, none = 0;
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name.rfind("aten::", 0) != 0) continue;
      auto op = c10::Dispatcher::singleton().findSchema(name);
      if (!op) continue;
      std::string bare =
          name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
      bool wanted =
          op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) || bare == "convolution_backward";
      if (!wanted || own.count(bare) || leave.count(bare)) continue;
      bool view = false;
      for (const auto& r : op->schema().returns())
        if (r.alias_info() && !r.alias_info()->isWrite()) view = true;
      if (view) continue;
      bool cpu =
          op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
          op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
          op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
          op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
      if (!cpu) {
        none++;
        continue;
      }
      lib->impl(bare.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
      n++;
    }
    lib->impl("copy_", TORCH_FN(copy_));
    lib->impl("cudnn_convolution", TORCH_FN(cudnn_convolution));
    lib->impl("cudnn_convolution_transpose", TORCH_FN(cudnn_convolution_transpose));
    lib->impl("_conv_depthwise2d", TORCH_FN(depthwise));
    lib->impl("cudnn_batch_norm", TORCH_FN(cudnn_batch_norm));
    lib->impl("cudnn_batch_norm_backward", TORCH_FN(cudnn_batch_norm_backward));
    lib->impl("_cudnn_rnn", torch::CppFunction::makeFromBoxedFunction<&cudnn_rnn>());
    lib->impl("_cudnn_rnn_backward",
              torch::CppFunction::makeFromBoxedFunction<&cudnn_rnn_backward>());
    lib->impl("_cudnn_rnn_flatten_weight", TORCH_FN(cudnn_rnn_flatten_weight));
    lib->impl("native_dropout", TORCH_FN(native_dropout));
    lib->impl("native_layer_norm_backward",
              torch::CppFunction::makeFromBoxedFunction<&norm_backward<3, 5>>());
    lib->impl("native_group_norm_backward",
              torch::CppFunction::makeFromBoxedFunction<&norm_backward<2, 4>>());
    lib->impl("index.Tensor", TORCH_FN(index));
    lib->impl("_index_put_impl_", TORCH_FN(index_put_impl));
    libraries().push_back(std::move(lib));
    at::globalContext().setSDPUseFlash(false);
    at::globalContext().setSDPUseMemEfficient(false);
    at::globalContext().setSDPUseCuDNN(false);
    if (getenv("PLAYED_CUDA_LOG"))
      fprintf(stderr, "played_cuda: %d operators computed by their CPU kernels; %d have none\n", n,
              none);
  }
} install;
}  // namespace
