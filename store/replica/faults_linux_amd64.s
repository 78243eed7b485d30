//go:build faults

#include "textflag.h"

DATA ·shiftedClock(SB)/8, $shiftedClockGettime<>(SB)
GLOBL ·shiftedClock(SB), NOPTR, $8

// int clock_gettime(clockid_t, struct timespec *), by the C calling convention.
TEXT shiftedClockGettime<>(SB), NOSPLIT|NOFRAME, $0
	SUBQ $24, SP // aligned for the call
	MOVQ DI, 0(SP)
	MOVQ SI, 8(SP)
	MOVQ ·realClock(SB), AX
	CALL AX
	MOVQ 0(SP), DI
	MOVQ 8(SP), SI
	ADDQ $24, SP
	CMPQ DI, $1 // CLOCK_REALTIME is 0, CLOCK_MONOTONIC 1
	JHI  done
	MOVQ ·clockOffset(SB), CX
	MOVQ (CX)(DI*8), CX
	ADDQ CX, (SI)

done:
	RET
