// The table of operators: what the engine knows about an operator by name. See Note [Operator table].
#include <torchfake/rules/operator_table.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <torchfake/rules/cpu_equivalents.h>
#include <torchfake/rules/native_table.h>
#include <torchfake/rules/refused_dtypes.h>
#include <torchfake/rules/rules.h>
#include <torchfake/rules/value_ranges.h>

namespace torchfake {

namespace {

using Facts = OperatorFacts;

struct Row {
  const char* names;
  void (*set)(Facts& facts);
};

// Operators whose number arguments are only factors. addmv and addbmm are excluded: for empty inputs they check whether
// a factor is zero.
#define TORCHFAKE_FACTOR_OPERATORS(PREFIX)                                                                      \
  PREFIX "add " PREFIX "add_ " PREFIX "sub " PREFIX "sub_ " PREFIX "rsub " PREFIX "mul " PREFIX "mul_ " PREFIX  \
         "div " PREFIX "div_ " PREFIX "addcmul " PREFIX "addcmul_ " PREFIX "addcdiv " PREFIX "addcdiv_ " PREFIX \
         "lerp " PREFIX "lerp_"

constexpr Row kRows[] = {
    // ---- Devices
    {"slice_scatter select_scatter diagonal_scatter as_strided_scatter copy_ copy _copy_from _copy_from_and_resize "
     "resize_as_ set_ _has_compatible_shallow_copy_type is_set_to _pack_padded_sequence pin_memory _use_cudnn_ctc_loss "
     "_use_miopen_ctc_loss _ctc_loss _ctc_loss_backward",
     [](Facts& facts) { facts.devices = DevicePolicy::kFirst; }},
    {"index _unsafe_index", [](Facts& facts) { facts.devices = DevicePolicy::kIndicesFromCpu; }},
    {"index_put index_put_ _index_put_impl_", [](Facts& facts) { facts.devices = DevicePolicy::kIndicesFromAnywhere; }},
    // Out-of-place arithmetic such as add.Tensor is not listed: it checks devices in real runs as well.
    {"add_.Tensor sub_.Tensor mul_.Tensor div_.Tensor logical_and_ mm embedding _embedding_bag "
     "_embedding_bag_forward_only index convolution gather index_select scatter.src",
     [](Facts& facts) { facts.takes_meta = true; }},
    {"nextafter", [](Facts& facts) { facts.devices = DevicePolicy::kCommonNoScalars; }},
    {"_scaled_dot_product_efficient_attention _efficient_attention_forward",
     [](Facts& facts) { facts.seeds_on_cpu = true; }},

    {"ones zeros full arange rand randn *_like new_full new_ones new_zeros _to_copy embedding masked_fill rsub sum.",
     [](Facts& facts) { facts.reads_no_settings = true; }},

    // ---- What is refused
    {"histogram _histogramdd_* _upsample_lanczos2d_aa*", [](Facts& facts) { facts.lacks_cuda = true; }},
    {"_to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc to_mkldnn quantize_per_tensor "
     "quantize_per_tensor_dynamic quantize_per_channel _empty_affine_quantized _empty_per_channel_affine_quantized "
     "empty_quantized _make_per_tensor_quantized_tensor _make_per_channel_quantized_tensor "
     "_sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors "
     "_sparse_compressed_tensor_with_dims sparse_coo_tensor.size sparse_compressed_tensor* _spdiags "
     "_nested_tensor_from_tensor_list _nested_tensor_from_mask "
     "_nested_view_from_buffer _nested_view_from_jagged",
     [](Facts& facts) { facts.makes_other_layout = true; }},
    {"roll unique_dim unique_dim_consecutive unique_consecutive linalg_matrix_exp isin.Tensor_Tensor",
     [](Facts& facts) { facts.autocast_check = &check_autocast_concatenation; }},
    {"embedding", [](Facts& facts) { facts.value_check = &check_embedding_rows; }},
    {"nll_loss_forward nll_loss2d_forward", [](Facts& facts) { facts.value_check = &check_classes; }},
    {"bincount", [](Facts& facts) { facts.value_check = &check_bincount; }},

    // ---- Values
    {"empty* new_empty*", [](Facts& facts) { facts.value_source = ValueSource::kUninitialised; }},
    // rrelu_with_noise_ reads the tensor it overwrites, and also fills another argument.
    {"_empty* resize* set_* _resize_output_ _efficientzerotensor _pin_memory rrelu_with_noise*",
     [](Facts& facts) { facts.value_source = ValueSource::kNone; }},
    {"rand*", [](Facts& facts) { facts.value_source = ValueSource::kDrawn; }},
    {"_amp_foreach_non_finite_check_and_unscale_", [](Facts& facts) { facts.finds_nothing = true; }},
    {"fill_ zero_ copy_", [](Facts& facts) { facts.value_source = ValueSource::kOverwrite; }},
    {"lift_fresh", [](Facts& facts) { facts.lift = Lift::kOwned; }},
    {"lift lift_fresh_copy", [](Facts& facts) { facts.lift = Lift::kCopied; }},
    {"nonzero", [](Facts& facts) { facts.memo = ValueMemos::kNonzero; }},
    {"isnan. isinf.", [](Facts& facts) { facts.needs_values = true; }},
    {"_local_scalar_dense", [](Facts& facts) { facts.memo = ValueMemos::kItem; }},
    {"_unique _unique2 unique_dim", [](Facts& facts) { facts.memo = ValueMemos::kUnique; }},
    {"unique_consecutive unique_dim_consecutive", [](Facts& facts) { facts.memo = ValueMemos::kUniqueConsecutive; }},
    {"_local_scalar_dense item", [](Facts& facts) { facts.returns_item = true; }},
    {"masked_select _pack_padded_sequence multinomial", [](Facts& facts) { facts.needs_values = true; }},
    {"index _unsafe_index masked_select", [](Facts& facts) { facts.takes_masks = true; }},
    {"masked_select nonzero", [](Facts& facts) { facts.shape_is_data = true; }},
    // A GPU uses another method, which does not compute the rank.
    {"linalg_lstsq", [](Facts& facts) { facts.differs_from_cpu = true; }},
    {"from_file", [](Facts& facts) { facts.reads_files = true; }},
    {"mm bmm addmm addmm_ baddbmm baddbmm_ addbmm addbmm_ mv addmv addmv_ dot vdot linear _addmm_activation "
     "convolution "
     "_convolution convolution_overrideable mkldnn_rnn_layer _cudnn_rnn _grouped_mm "
     "_scaled_dot_product_flash_attention_for_cpu",
     [](Facts& facts) { facts.is_product = true; }},
    {"_int_mm _scaled_mm _scaled_grouped_mm", [](Facts& facts) { facts.is_byte_product = true; }},
    {"c10d::broadcast_", [](Facts& facts) { facts.is_broadcast = true; }},

    // ---- Arguments and outputs
    {"*_like new_* resize_as_ empty_quantized", [](Facts& facts) { facts.takes_shape_only = true; }},
    {TORCHFAKE_FACTOR_OPERATORS("") " " TORCHFAKE_FACTOR_OPERATORS(
         "_foreach_") " addmm addmm_ baddbmm baddbmm_ addr addr_ _fused_adam* _fused_sgd* _fused_adagrad*",
     [](Facts& facts) { facts.takes_factors = true; }},
    {"index _unsafe_index index_put* _index_put_impl_ _unsafe_index_put", [](Facts& facts) { facts.is_index = true; }},
    {"native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_update_stats batch_norm_gather_stats*",
     [](Facts& facts) { facts.keeps_statistics = true; }},
    {"_compute_linear_combination", [](Facts& facts) { facts.reads_out = true; }},
    // If the lengths are numbers, its shape is fixed.
    {"_ctc_loss.", [](Facts& facts) { facts.has_fixed_shape = true; }},
    // These return views without declaring it: autograd must not treat them as views.
    {"_unsafe_view unsafe_split*", [](Facts& facts) { facts.returns_view = true; }},
    {"addbmm_ resize* set_* as_strided* _resize*", [](Facts& facts) { facts.resizes = true; }},
    {"*_scatter as_strided_copy", [](Facts& facts) { facts.keeps_place = true; }},
    {"set_", [](Facts& facts) { facts.replaces_storage = true; }},
    {"_efficientzerotensor", [](Facts& facts) { facts.makes_zero_tensor = true; }},
    {"_to_copy", [](Facts& facts) { facts.converts = true; }},
    {"detach", [](Facts& facts) { facts.detaches = true; }},
};

#undef TORCHFAKE_FACTOR_OPERATORS

const RuleList& all_rules() {
  static const auto* rules = [] {
    auto* all = new RuleList();
    for (const auto family :
         {&indexing_rules,
          &sequence_rules,
          &view_rules,
          &attention_rules,
          &question_rules,
          &autocast_rules,
          &argument_checks,
          &determinism_rules}) {
      for (const RuleRow& row : family()) {
        all->push_back(row);
      }
    }
    return all;
  }();
  return *rules;
}

bool names_one(std::string_view name, std::string_view library, std::string_view base, std::string_view overload) {
  if (const size_t colons = name.find("::"); colons != name.npos) {
    if (name.substr(0, colons) != library) {
      return false;
    }
    name.remove_prefix(colons + 2);
  } else if (library != "aten" && library != "prims") {
    return false;
  }
  if (const size_t point = name.find('.'); point != name.npos) {
    return name.substr(0, point) == base && name.substr(point + 1) == overload;
  }
  if (name.front() == '*') {
    return base.ends_with(name.substr(1));
  }
  return name.back() == '*' ? base.starts_with(name.substr(0, name.size() - 1)) : base == name;
}

}  // namespace

bool names_operator(
    std::string_view names,
    std::string_view library,
    std::string_view base,
    std::string_view overload) {
  while (!names.empty()) {
    const size_t end = std::min(names.find(' '), names.size());
    if (names_one(names.substr(0, end), library, base, overload)) {
      return true;
    }
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

OperatorFacts find_operator_facts(const c10::OperatorHandle& op) {
  const c10::OperatorName& whole = op.operator_name();
  const std::string_view name = whole.name;
  const std::string_view library = name.substr(0, name.find("::"));
  const std::string_view base = name.substr(library.size() + 2);
  OperatorFacts facts;
  for (const Row& row : kRows) {
    if (names_operator(row.names, library, base, whole.overload_name)) {
      row.set(facts);
    }
  }
  for (const RuleRow& row : all_rules()) {
    if (names_operator(row.names, library, base, whole.overload_name)) {
      TORCH_INTERNAL_ASSERT(facts.rule == nullptr, whole, " has two rules in csrc/torchfake/rules");
      facts.rule = row.rule;
    }
  }
  const std::string qualified = c10::toString(whole);
  facts.kernel = find_native_kernel(qualified);
  facts.cpu_equivalent = find_cpu_equivalent(qualified);
  facts.range = find_range_row(op);
  facts.refused_dtypes = DtypeRefusals::of(op);
  return facts;
}

}  // namespace torchfake
