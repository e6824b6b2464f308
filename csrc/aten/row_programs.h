// Registration of reductions, scans, and programs over rows, as ATen kernels.
#pragma once

namespace hologram::aten {

// Called once, before register_delegates().
void register_reductions();
void register_row_programs();
void register_rms_norm();
void register_channel_norms();
void register_arg_reductions();
void register_losses();
void register_scans();

}  // namespace hologram::aten
