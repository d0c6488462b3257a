package main

import (
	"bytes"
	"debug/elf"
	"debug/gosym"
	"encoding/binary"
	"errors"
	"os"
	"time"
)

// setClock sets by how much the wall clock of the process is ahead of the machine's. Nothing outside the process
// notices. Go asks the kernel's code in each process for the time, at an address that it keeps in a variable. The
// variable is set to a function that asks there and adds the difference. It is written over runtime.schedinit,
// which has run.
func (r *replica) setClock(ahead time.Duration) error {
	binaryFile, err := elf.Open(r.proc("exe"))
	if err != nil {
		return err
	}
	defer binaryFile.Close()
	text := binaryFile.Section(".text")
	lines, err := binaryFile.Section(".gopclntab").Data()
	if err != nil {
		return err
	}
	table, err := gosym.NewTable(nil, gosym.NewLineTable(lines, text.Addr))
	if err != nil {
		return err
	}
	now, place := table.LookupFunc("time.now"), table.LookupFunc("runtime.schedinit")
	memory, err := os.OpenFile(r.proc("mem"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	code := make([]byte, now.End-now.Entry)
	if _, err := memory.ReadAt(code, int64(now.Entry)); err != nil {
		return err
	}
	// MOVQ runtime·vdsoClockgettimeSym(SB), AX; CMPQ AX, $0
	after := bytes.Index(code, []byte("\x48\x83\xf8\x00"))
	if after < 7 || !bytes.HasPrefix(code[after-7:], []byte("\x48\x8b\x05")) {
		return errors.New("time.now is not that of Go 1.26 on amd64")
	}
	variable := int64(now.Entry) + int64(after) + int64(int32(binary.LittleEndian.Uint32(code[after-4:])))
	kernels := make([]byte, 8)
	if _, err := memory.ReadAt(kernels, variable); err != nil {
		return err
	}
	if binary.LittleEndian.Uint64(kernels) == place.Entry { // it is set already
		if _, err := memory.ReadAt(kernels, int64(place.Entry)+8); err != nil {
			return err
		}
	}
	trampoline := append([]byte("\x57\x56\x48\x83\xec\x08\x48\xb8"), kernels...)                                   // push rdi, rsi; sub rsp, 8; mov rax, the kernel's
	trampoline = append(trampoline, "\xff\xd0\x48\x83\xc4\x08\x5e\x5f\x85\xff\x75\x07\x48\x81\x06"...)             // call rax; add rsp, 8; pop rsi, rdi; if edi == CLOCK_REALTIME: add [rsi],
	trampoline = append(binary.LittleEndian.AppendUint32(trampoline, uint32(int32(ahead/time.Second))), "\xc3"...) // seconds; ret
	if _, err := memory.WriteAt(trampoline, int64(place.Entry)); err != nil {
		return err
	}
	_, err = memory.WriteAt(binary.LittleEndian.AppendUint64(nil, place.Entry), variable)
	return err
}
