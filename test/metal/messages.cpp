// objc_msgSend and its variants: a message is a call with any arguments and result, so what finds
// the method keeps all that a call is passed in, and goes on there as if it had been called itself.
#if !defined(__x86_64__)
#error "messages are written for x86-64 only"
#endif

// Where a structure is returned in memory, the first argument is its address.
asm(R"(
.macro SIMULATED_METAL_SEND name, self, selector
.globl \name
.hidden \name
.type \name, @function
\name:
  pushq %rbp
  movq %rsp, %rbp
  pushq %rdi
  pushq %rsi
  pushq %rdx
  pushq %rcx
  pushq %r8
  pushq %r9
  subq $128, %rsp
  movups %xmm0, (%rsp)
  movups %xmm1, 16(%rsp)
  movups %xmm2, 32(%rsp)
  movups %xmm3, 48(%rsp)
  movups %xmm4, 64(%rsp)
  movups %xmm5, 80(%rsp)
  movups %xmm6, 96(%rsp)
  movups %xmm7, 112(%rsp)
  movq \self, %rax
  movq \selector, %rsi
  movq %rax, %rdi
  call simulated_metal_method@PLT
  movq %rax, %r11
  movups (%rsp), %xmm0
  movups 16(%rsp), %xmm1
  movups 32(%rsp), %xmm2
  movups 48(%rsp), %xmm3
  movups 64(%rsp), %xmm4
  movups 80(%rsp), %xmm5
  movups 96(%rsp), %xmm6
  movups 112(%rsp), %xmm7
  addq $128, %rsp
  popq %r9
  popq %r8
  popq %rcx
  popq %rdx
  popq %rsi
  popq %rdi
  popq %rbp
  jmp *%r11
.size \name, .-\name
.endm

.text
SIMULATED_METAL_SEND objc_msgSend, %rdi, %rsi
SIMULATED_METAL_SEND objc_msgSend_fpret, %rdi, %rsi
SIMULATED_METAL_SEND objc_msgSend_stret, %rsi, %rdx
)");
