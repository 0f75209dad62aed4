; What runs a kernel on an emulated processor: no library, and Linux's calls by their numbers.

target triple = "aarch64-unknown-linux-gnu"

declare double @llvm.fabs.f64(double)
declare double @llvm.copysign.f64(double, double)

; The words at 0x10000000: the kernel's entry, its arguments, its scratch memory, how many instances one call runs, how many
; there are in all, and where and how long that is what is written to standard output.
define void @_start() {
entry:
  %place = inttoptr i64 268435456 to ptr
  %p1 = getelementptr i64, ptr %place, i64 1
  %p2 = getelementptr i64, ptr %place, i64 2
  %p3 = getelementptr i64, ptr %place, i64 3
  %p4 = getelementptr i64, ptr %place, i64 4
  %p5 = getelementptr i64, ptr %place, i64 5
  %p6 = getelementptr i64, ptr %place, i64 6
  %kernel = load ptr, ptr %place
  %args = load ptr, ptr %p1
  %scratch = load ptr, ptr %p2
  %row = load i64, ptr %p3
  %total = load i64, ptr %p4
  %from = load i64, ptr %p5
  %length = load i64, ptr %p6
  br label %rows
rows:
  %at = phi i64 [ 0, %entry ], [ %next, %run ]
  %more = icmp slt i64 %at, %total
  br i1 %more, label %run, label %write
run:
  call void %kernel(ptr %args, i64 0, i64 %row, ptr %scratch)
  %next = add i64 %at, %row
  br label %rows
write:
  %done = phi i64 [ 0, %rows ], [ %sum, %part ]
  %left = sub i64 %length, %done
  %any = icmp sgt i64 %left, 0
  br i1 %any, label %part, label %end
part:
  %source = add i64 %from, %done
  %wrote = call i64 asm sideeffect "svc #0", "={x0},{x8},0,{x1},{x2},~{memory}"(i64 64, i64 1, i64 %source, i64 %left)
  %sum = add i64 %done, %wrote
  %good = icmp sgt i64 %wrote, 0
  br i1 %good, label %write, label %fail
end:
  call void @leave(i64 0)
  unreachable
fail:
  call void @leave(i64 1)
  unreachable
}

define void @leave(i64 %status) {
  %none = call i64 asm sideeffect "svc #0", "={x0},{x8},0,~{memory}"(i64 94, i64 %status)
  ret void
}

define ptr @memcpy(ptr %to, ptr %from, i64 %n) {
  %same = call ptr @memmove(ptr %to, ptr %from, i64 %n)
  ret ptr %same
}

define ptr @memmove(ptr %to, ptr %from, i64 %n) {
entry:
  %behind = icmp ugt ptr %to, %from
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %body ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %exit
body:
  %j = add i64 %i, 1
  %last = sub i64 %n, %j
  %k = select i1 %behind, i64 %last, i64 %i
  %a = getelementptr i8, ptr %from, i64 %k
  %b = getelementptr i8, ptr %to, i64 %k
  %v = load volatile i8, ptr %a
  store volatile i8 %v, ptr %b
  br label %loop
exit:
  ret ptr %to
}

define ptr @memset(ptr %to, i32 %value, i64 %n) {
entry:
  %byte = trunc i32 %value to i8
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %body ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %exit
body:
  %b = getelementptr i8, ptr %to, i64 %i
  store volatile i8 %byte, ptr %b
  %j = add i64 %i, 1
  br label %loop
exit:
  ret ptr %to
}

; The remainder: the divisor is doubled while it is at most half of what is left, and taken off on the way back. Every step
; is exact.
define double @fmod(double %x, double %y) {
entry:
  %ax = call double @llvm.fabs.f64(double %x)
  %ay = call double @llvm.fabs.f64(double %y)
  %finite = fcmp olt double %ax, 0x7FF0000000000000
  %number = fcmp ogt double %ay, 0.0
  %sound = and i1 %finite, %number
  %half = fmul double %ax, 0.5
  br i1 %sound, label %rise, label %none
none:
  ret double 0x7FF8000000000000
rise:
  %t = phi double [ %ay, %entry ], [ %twice, %more ]
  %low = fcmp ole double %t, %half
  br i1 %low, label %more, label %fall
more:
  %twice = fmul double %t, 2.0
  br label %rise
fall:
  %s = phi double [ %t, %rise ], [ %next, %on ]
  %r = phi double [ %ax, %rise ], [ %left, %on ]
  %fits = fcmp oge double %r, %s
  %less = fsub double %r, %s
  %left = select i1 %fits, double %less, double %r
  %last = fcmp ole double %s, %ay
  br i1 %last, label %end, label %on
on:
  %next = fmul double %s, 0.5
  br label %fall
end:
  %result = call double @llvm.copysign.f64(double %left, double %x)
  ret double %result
}

define float @fmodf(float %x, float %y) {
  %a = fpext float %x to double
  %b = fpext float %y to double
  %c = call double @fmod(double %a, double %b)
  %d = fptrunc double %c to float
  ret float %d
}

define void @tilefuse_print(ptr %launch, i64 %instance, ptr %note, i64 %length, ptr %tiles) {
  ret void
}

define void @tilefuse_assert(ptr %launch, i64 %instance, ptr %note, i64 %length, ptr %tiles) {
  ret void
}
