/* One tail-jump per passed-on symbol. A slot holds, at first, the address of a resolver that asks driver.c for the real
 * function, keeps it in the slot and jumps there; later calls cost one indirect jump. Registers and stack stay as the
 * caller left them, so any signature passes. */
#if !defined(__x86_64__) && !defined(__aarch64__)
#error "the shim knows x86-64 and aarch64"
#endif

    .altmacro
    .set gls_index, 0

#ifdef __x86_64__
.macro STUB name, n
    .text
    .balign 16
    .globl \name
    .type \name, @function
\name:
    endbr64
    movq gls_slots+8*\n(%rip), %r11
    jmp *%r11
.Lresolve\n:
    endbr64
    movl $\n, %r11d
    jmp gls_resolve_and_jump
    .size \name, .-\name
    .section .gls_slots, "aw", @progbits
    .quad .Lresolve\n
.endm
#else
.macro STUB name, n
    .text
    .balign 16
    .globl \name
    .type \name, %function
\name:
    hint #34
    adrp x16, gls_slots+8*\n
    ldr x16, [x16, #:lo12:gls_slots+8*\n]
    br x16
.Lresolve\n:
    hint #36
    movz w17, #\n
    b gls_resolve_and_jump
    .size \name, .-\name
    .section .gls_slots, "aw", %progbits
    .xword .Lresolve\n
.endm
#endif

.macro NEXT name
    STUB \name, %gls_index
    .set gls_index, gls_index + 1
.endm

    .section .gls_slots, "aw"
    .balign 8
    .globl gls_slots
    .hidden gls_slots
gls_slots:

#define SYMBOL(name) NEXT name
#include "symbols.def"
#ifdef GLS_EXTRA_SYMBOLS
#include GLS_EXTRA_SYMBOLS
#endif

    .text
    .balign 16
#ifdef __x86_64__
    .type gls_resolve_and_jump, @function
gls_resolve_and_jump: /* r11: index. Saves what may carry arguments: six integer, eight vector registers, al. */
    .cfi_startproc
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    andq $-16, %rsp
    subq $192, %rsp
    movq %rdi, 0(%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movq %rax, 48(%rsp)
    movq %r10, 56(%rsp)
    movups %xmm0, 64(%rsp)
    movups %xmm1, 80(%rsp)
    movups %xmm2, 96(%rsp)
    movups %xmm3, 112(%rsp)
    movups %xmm4, 128(%rsp)
    movups %xmm5, 144(%rsp)
    movups %xmm6, 160(%rsp)
    movups %xmm7, 176(%rsp)
    movl %r11d, %edi
    call gls_resolve
    movq %rax, %r11
    movq 0(%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movq 48(%rsp), %rax
    movq 56(%rsp), %r10
    movups 64(%rsp), %xmm0
    movups 80(%rsp), %xmm1
    movups 96(%rsp), %xmm2
    movups 112(%rsp), %xmm3
    movups 128(%rsp), %xmm4
    movups 144(%rsp), %xmm5
    movups 160(%rsp), %xmm6
    movups 176(%rsp), %xmm7
    movq %rbp, %rsp
    popq %rbp
    .cfi_def_cfa %rsp, 8
    jmp *%r11
    .cfi_endproc
    .size gls_resolve_and_jump, .-gls_resolve_and_jump
#else
    .type gls_resolve_and_jump, %function
gls_resolve_and_jump: /* w17: index. Saves x0–x8, q0–q7 and the link register. */
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_def_cfa_offset 224
    .cfi_offset x29, -224
    .cfi_offset x30, -216
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w17
    bl gls_resolve
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    br x16
    .cfi_endproc
    .size gls_resolve_and_jump, .-gls_resolve_and_jump
#endif

    .section .note.GNU-stack, "", %progbits
