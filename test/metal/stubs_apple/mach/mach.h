// What csrc/cpu/system.cpp calls of the kernel, and metal-cpp's headers have (test/metal/stubs).
#pragma once

#include <stdint.h>

extern "C" {
typedef unsigned int natural_t;
typedef int integer_t;
typedef natural_t mach_port_t;
typedef mach_port_t mach_port_name_t, host_t, task_t, ipc_space_t;
typedef int kern_return_t;
typedef natural_t mach_msg_type_number_t;
typedef integer_t host_flavor_t;
typedef integer_t* host_info64_t;
typedef uintptr_t vm_size_t;
typedef uint32_t task_id_token_t;

typedef struct vm_statistics64 {
  natural_t free_count, active_count, inactive_count, wire_count;
  uint64_t zero_fill_count, reactivations, pageins, pageouts, faults, cow_faults, lookups, hits;
  uint64_t purges;
  natural_t purgeable_count, speculative_count;
  uint64_t decompressions, compressions, swapins, swapouts;
  natural_t compressor_page_count, throttled_count, external_page_count, internal_page_count;
  uint64_t total_uncompressed_pages_in_compressor;
} vm_statistics64_data_t;

#define KERN_SUCCESS 0
#define HOST_VM_INFO64 4
#define HOST_VM_INFO64_COUNT \
  ((mach_msg_type_number_t)(sizeof(vm_statistics64_data_t) / sizeof(integer_t)))

extern mach_port_t mach_task_self_;
#define mach_task_self() mach_task_self_
extern vm_size_t vm_kernel_page_size, vm_page_size;

mach_port_t mach_host_self(void);
kern_return_t mach_port_deallocate(ipc_space_t, mach_port_name_t);
kern_return_t host_statistics64(host_t, host_flavor_t, host_info64_t, mach_msg_type_number_t*);
}
