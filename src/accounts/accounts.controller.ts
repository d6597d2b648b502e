import { BadRequestException, Body, Controller, HttpCode, Post } from '@nestjs/common';
import { AccountsService, type TransferOrder, type TransferReceipt } from './accounts.service.js';

@Controller('accounts')
export class AccountsController {
  constructor(private readonly accounts: AccountsService) {}

  @Post('transfer')
  @HttpCode(200)
  transfer(@Body() body: unknown): Promise<TransferReceipt> {
    return this.accounts.transfer(readOrder(body));
  }
}

function readOrder(body: unknown): TransferOrder {
  const { id, from, to, amountCents } = (body ?? {}) as Partial<Record<keyof TransferOrder, unknown>>;
  const isText = (value: unknown): value is string => typeof value === 'string' && value.trim() !== '';
  if (!isText(id) || !isText(from) || !isText(to) || from === to) {
    throw new BadRequestException('id, from and to must be texts, and from and to two accounts.');
  }
  if (!Number.isSafeInteger(amountCents) || Number(amountCents) <= 0) {
    throw new BadRequestException('amountCents must be a positive whole number.');
  }
  return { id, from, to, amountCents: Number(amountCents) };
}
